"""What a function does while it is captured: what it reads, sends, and updates, pass by pass.

There is one capture at a time. Calls of other threads meanwhile are not captured.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from poptorch_emu.errors import compiler_error
from poptorch_emu.keras.loops.symbolic_values import entered, left, outside_of_graphs


@dataclass
class Update:
    """What an optimiser was asked to do: its variables, and the loss that has these gradients."""

    optimizer: Any
    variables: list[Any]
    loss: Any
    gradients: list[Any]


@dataclass(eq=False)
class Pass:
    """One pass of a loop, or what is outside of loops.

    Attributes:
        parent: what is around the loop.
        reads: the infeeds of which an element was taken, in order.
        sent: queues, each with what it was given.
        updates: of optimisers.
        is_in_program: whether updates are operations of the program, in their order, not the last
            step of a training program.
        loop: one inside whose passes are device iterations.
        is_of_device: whether the program itself says that this is one of the device.
        is_merged: whether its values are now those of the parent.
        is_gone: whether nothing that follows has access to its values.
    """

    parent: Pass | None = None
    reads: list[Any] = field(default_factory=list)
    sent: list[tuple[Any, Any]] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)
    is_in_program: bool = False
    loop: DeviceLoop | None = None
    is_of_device: bool = False
    is_merged: bool = False
    is_gone: bool = False

    @property
    def acts(self) -> bool:
        """Whether it reads, sends or updates by itself."""
        return bool(self.reads or self.sent or self.updates)

    @property
    def update(self) -> Update | None:
        """The update that a training program ends with; `None` if there is none."""
        return self.updates[0] if self.updates and not self.is_in_program else None

    def holder(self) -> Pass:
        """Returns the pass that has the values of this one now."""
        return self.parent.holder() if self.is_merged and self.parent is not None else self

    def enter(self, loop: DeviceLoop) -> None:
        """Notes a loop of the device inside.

        Raises:
            Error: there is another one.
        """
        if self.loop is not None:
            raise compiler_error(
                "A function that IPUStrategy.run runs has one loop that reads, enqueues or trains, "
                "but here a second one follows. Run one function for each loop."
            )
        self.loop = loop


@dataclass(eq=False)
class DeviceLoop:
    """A loop whose passes are device iterations.

    Attributes:
        ordinal: which of the loops that the function begins.
        values: what its variable takes on, one after the other.
        body: its last pass.
        carried: local variables that one pass hands to the next, with what they are at first, and
            after a pass.
    """

    ordinal: int
    values: Sequence[Any]
    body: Pass
    carried: dict[str, tuple[Any, Any]] = field(default_factory=dict)


class Capture(ABC):
    """One run of a function.

    Attributes:
        replicas: among which elements are divided.
        outermost: what is outside of all loops.
        num_acts: how often it has read, sent or updated.
        origins: gradients that a tape returned, by their ids, with its target and the source.
    """

    def __init__(self, replicas: int) -> None:
        """Begins.

        Args:
            replicas: among which batches are divided.
        """
        self.replicas = replicas
        self.outermost = Pass()
        self._innermost = self.outermost
        self._num_loops = 0
        self.num_acts = 0
        self.origins: dict[int, tuple[Any, Any, Any]] = {}

    @abstractmethod
    def element(self, infeed: Any) -> Any:
        """Returns the next element of an infeed."""

    @abstractmethod
    def passes(self, ordinal: int, values: Sequence[Any]) -> Iterator[Any]:
        """Yields the values of a loop's variable, as far as the loop is run."""

    def known_count(self) -> int | None:
        """Returns how many iterations the loop makes that begins next, if that is known."""
        return None

    def run_loop(self, values: Sequence[Any]) -> Iterator[Any]:
        """Yields the values of the variable of a loop that begins."""
        self._num_loops += 1
        return self.passes(self._num_loops - 1, values)

    def note_read(self, variable: Any) -> None:
        """Notes that a variable of Keras is read."""
        return None

    def note_device_loop(self) -> None:
        """Makes the loop whose pass this is one of the device."""
        self._innermost.is_of_device = True

    def read(self, infeed: Any) -> Any:
        """Returns an element of an infeed."""
        self._innermost.reads.append(infeed)
        self.num_acts += 1
        return entered(self.element(infeed))

    def send(self, queue: Any, value: Any) -> None:
        """Notes that a queue is given a value.

        Raises:
            ValueError: it was given one already.
        """
        if any(queue is other for each in self._open_passes() for other, _ in each.sent):
            raise ValueError(
                "An outfeed can only be enqueued once. Make an IPUOutfeedQueue for each value, or "
                "enqueue them together as a tuple or a dict."
            )
        self._innermost.sent.append((queue, left(value)))
        self.num_acts += 1

    def update(self, update: Update) -> None:
        """Notes the update of an optimiser."""
        self._innermost.updates.append(update)
        self.num_acts += 1

    @contextmanager
    def one_pass(self) -> Iterator[Pass]:
        """Collects what happens in one pass of a loop."""
        outer = self._innermost
        self._innermost = Pass(outer)
        try:
            yield self._innermost
        finally:
            self._innermost = outer

    def active(self) -> AbstractContextManager[None]:
        """Makes this the capture of the thread."""
        return _as_current(self)

    def _open_passes(self) -> Iterator[Pass]:
        each: Pass | None = self._innermost
        while each is not None:
            yield each
            each = each.parent


class SendingCapture(Capture):
    """The run of a model, whose layers and losses may send values to queues."""

    def element(self, infeed: Any) -> Any:
        """Refuses.

        Raises:
            Error: always; a model is given its data.
        """
        raise compiler_error(
            "next() is called in a layer or a loss, but the data of a model are what fit and its "
            "like are given. Call it in the function that IPUStrategy.run runs."
        )

    def passes(self, ordinal: int, values: Sequence[Any]) -> Iterator[Any]:
        """Yields all values."""
        return iter(values)


_local = threading.local()


def current() -> Capture | None:
    """Returns the capture of this thread, `None` if there is none."""
    capture: Capture | None = getattr(_local, "capture", None)
    return capture


@contextmanager
def suspended() -> Iterator[None]:
    """Lets this thread do what is neither captured nor the program's own."""
    was_suspended = is_suspended()
    _local.is_suspended = True
    try:
        with _as_current(None), outside_of_graphs():
            yield
    finally:
        _local.is_suspended = was_suspended


def is_suspended() -> bool:
    """Returns whether this thread does what is not the program's own."""
    return getattr(_local, "is_suspended", False)


@contextmanager
def _as_current(capture: Capture | None) -> Iterator[None]:
    before = current()
    _local.capture = capture
    try:
        yield
    finally:
        _local.capture = before
