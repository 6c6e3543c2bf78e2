"""Records the reads, sends and updates of a function while it is captured, pass by pass.

Each thread has at most one capture. Calls of other threads are not part of it.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from poptorch_emu.errors import compiler_error
from poptorch_emu.keras.capture.python_state import PythonState, RepeatedCode
from poptorch_emu.keras.capture.symbolic_values import entered, left, outside_of_graphs


@dataclass
class Update:
    """A requested update of an optimiser: its variables, their gradients, and the loss of these."""

    optimizer: Any
    variables: list[Any]
    loss: Any
    gradients: list[Any]


@dataclass(eq=False)
class Pass:
    """One pass of a loop, or the code outside of loops.

    Attributes:
        parent: pass around the loop; `None` outside of loops.
        reads: infeeds that the pass has read from, in order.
        sent: (queue, value) pairs that the pass has sent.
        updates: updates of optimisers.
        is_in_program: whether updates are operations of the program, in order, instead of the last
            step of a training program.
        loop: loop inside this pass whose passes are device iterations.
        is_of_device: whether the program itself requests that this pass is a device iteration.
        is_merged: whether the values of the pass now belong to its parent.
        is_gone: whether later code cannot access the values of the pass.
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
        """Whether the pass itself reads, sends or updates."""
        return bool(self.reads or self.sent or self.updates)

    @property
    def update(self) -> Update | None:
        """The update at the end of a training program; `None` if there is none."""
        return self.updates[0] if self.updates and not self.is_in_program else None

    def holder(self) -> Pass:
        """Returns the pass that owns the values of this pass now."""
        return self.parent.holder() if self.is_merged and self.parent is not None else self

    def enter(self, loop: DeviceLoop) -> None:
        """Records a loop of the device inside the pass.

        Raises:
            Error: the pass already has such a loop.
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
        ordinal: index of the loop among the loops that the function begins.
        values: values of the loop's variable, in order.
        body: last pass of the loop.
        carried: local variables that one pass hands to the next, as (value before the loop, value
            after a pass).
        code: what its code changes in Python; `None` if that is not known.
        is_of_python: whether TensorFlow runs the code for each value, as in Python.
    """

    ordinal: int
    values: Sequence[Any]
    body: Pass
    carried: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    code: RepeatedCode | None = None
    is_of_python: bool = False


class Capture(ABC):
    """One run of a function that is captured.

    Attributes:
        replicas: number of replicas among which elements are divided.
        outermost: record of the code outside of all loops.
        num_acts: number of reads, sends and updates.
        origins: (gradient, target, source) of each gradient that a tape returned, by its id.
        tapes: records of the tapes that are open.
        former_values: tensors that were read from a variable before it was assigned, by its id.
        python: objects of Python that the function can change; `None` for a model.
    """

    def __init__(self, replicas: int, python: PythonState | None = None) -> None:
        """Prepares a capture.

        Args:
            replicas: number of replicas among which batches are divided.
            python: objects of Python that the function can change; `None` for a model.
        """
        self.replicas = replicas
        self.python = python
        self.outermost = Pass()
        self._innermost = self.outermost
        self._num_loops = 0
        self.num_acts = 0
        self.origins: dict[int, tuple[Any, Any, Any]] = {}
        self.tapes: list[Any] = []
        self.former_values: dict[int, list[Any]] = {}

    @abstractmethod
    def element(self, infeed: Any) -> Any:
        """Returns the next element of an infeed."""

    @abstractmethod
    def passes(self, ordinal: int, values: Sequence[Any], is_of_python: bool) -> Iterator[Any]:
        """Yields the values of a loop's variable, as far as the loop is run.

        Args:
            ordinal: index of the loop among the loops that the function begins.
            values: values of the loop's variable.
            is_of_python: whether TensorFlow runs the code for each value, as in Python.
        """

    def known_count(self) -> int | None:
        """Returns the number of iterations of the loop that begins next; `None` if unknown."""
        return None

    def run_loop(self, values: Sequence[Any], *, is_of_python: bool = False) -> Iterator[Any]:
        """Yields the values of the variable of a loop that begins."""
        ordinal = self._num_loops
        for value in self.passes(ordinal, values, is_of_python):
            self._num_loops = ordinal + 1  # Loops inside have the same ordinals in each pass.
            yield value
        self._num_loops = max(self._num_loops, ordinal + 1)

    def note_read(self, variable: Any) -> None:
        """Records that a variable of Keras is read."""
        return None

    def note_device_loop(self) -> None:
        """Makes the loop of the current pass a loop of the device."""
        self._innermost.is_of_device = True

    def read(self, infeed: Any) -> Any:
        """Returns an element of an infeed."""
        self._innermost.reads.append(infeed)
        self.num_acts += 1
        return entered(self.element(infeed))

    def send(self, queue: Any, value: Any) -> None:
        """Records that a value is sent to a queue.

        Raises:
            ValueError: the queue has already received a value.
        """
        if any(queue is other for each in self._open_passes() for other, _ in each.sent):
            raise ValueError(
                "An outfeed can only be enqueued once. Make an IPUOutfeedQueue for each value, or "
                "enqueue them together as a tuple or a dict."
            )
        self._innermost.sent.append((queue, left(value)))
        self.num_acts += 1

    def update(self, update: Update) -> None:
        """Records an update of an optimiser."""
        self._innermost.updates.append(update)
        self.num_acts += 1

    @contextmanager
    def one_pass(self) -> Iterator[Pass]:
        """Records the acts within the context as one pass of a loop."""
        outer = self._innermost
        self._innermost = Pass(outer)
        try:
            yield self._innermost
        finally:
            self._innermost = outer

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Discards the acts within the context, and its changes of Python's objects."""
        python = self.python
        with self.one_pass(), nullcontext() if python is None else python.repetition(python.now()):
            yield

    def active(self) -> AbstractContextManager[None]:
        """Makes this the capture of the thread."""
        return _as_current(self)

    def _open_passes(self) -> Iterator[Pass]:
        each: Pass | None = self._innermost
        while each is not None:
            yield each
            each = each.parent


class SendingCapture(Capture):
    """A run of a model. Its layers and losses may send values to queues."""

    def element(self, infeed: Any) -> Any:
        """Raises an error, because a model does not read data itself.

        Raises:
            Error: always.
        """
        raise compiler_error(
            "next() is called in a layer or a loss, but a model gets its data from the arguments "
            "of fit, evaluate and predict. Call it in the function that IPUStrategy.run runs."
        )

    def passes(self, ordinal: int, values: Sequence[Any], is_of_python: bool) -> Iterator[Any]:
        """Yields all values."""
        return iter(values)


_local = threading.local()


def current() -> Capture | None:
    """Returns the capture of this thread; `None` if there is none."""
    capture: Capture | None = getattr(_local, "capture", None)
    return capture


@contextmanager
def suspended() -> Iterator[None]:
    """Lets this thread run code that is neither captured nor part of the user's program."""
    was_suspended = is_suspended()
    _local.is_suspended = True
    try:
        with _as_current(None), outside_of_graphs():
            yield
    finally:
        _local.is_suspended = was_suspended


def is_suspended() -> bool:
    """Returns whether this thread runs code outside of the user's program."""
    return getattr(_local, "is_suspended", False)


@contextmanager
def _as_current(capture: Capture | None) -> Iterator[None]:
    before = current()
    _local.capture = capture
    try:
        yield
    finally:
        _local.capture = before
