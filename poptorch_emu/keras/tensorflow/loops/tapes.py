"""Record of a `tf.GradientTape` in a captured function: the operations in its context.

PyTorch builds its graph only while a tape is open, and numbers its nodes in the order of their
creation. An operation outside of a tape has a constant result for that tape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import torch
from torch.autograd.graph import get_gradient_edge

from poptorch_emu.errors import compiler_error
from poptorch_emu.keras.capture.capture_state import Capture
from poptorch_emu.keras.capture.symbolic_values import left
from poptorch_emu.keras.capture.tensorflow_variables import is_variable
from poptorch_emu.torch_versions import get_sequence_nr

_RECORD = "_poptorch_record"


class Record:
    """The times at which a tape was open, and the values that it watches."""

    def __init__(self, tape: Any) -> None:
        """Takes a tape that has not been opened."""
        self._tape = tape
        self._times: list[list[Any]] = []  # Numbers of the nodes before which it changed.
        self._watched: dict[int, Any] = {}
        self._was_used = False

    def open(self, capture: Capture) -> None:
        """Begins to record."""
        self._times.append([get_sequence_nr(), None])
        capture.tapes.append(self)
        torch.set_grad_enabled(True)

    def close(self, capture: Capture) -> None:
        """Ends recording; a closed tape stays closed."""
        if self in capture.tapes:
            self._times[-1][1] = get_sequence_nr()
            capture.tapes.remove(self)
            torch.set_grad_enabled(bool(capture.tapes))

    def watch(self, values: Any) -> None:
        """Makes tensors and variables valid sources of gradients.

        Raises:
            Error: a variable is not trainable.
        """
        for each in keras.tree.flatten(values):
            if _is_any_variable(each) and not each.trainable:
                raise compiler_error(
                    f"GradientTape.watch is called with variable {each.name!r}, which is not "
                    "trainable. Watch its value: x = tf.identity(variable), tape.watch(x)."
                )
            self._watched[id(each)] = each
            if isinstance(each, torch.Tensor) and each.is_floating_point():
                each.requires_grad_()

    def begin_gradient(self, capture: Capture) -> None:
        """Notes that gradients are computed.

        Raises:
            RuntimeError: they were computed before, and the tape is not persistent.
        """
        if self._tape._persistent:
            return
        if self._was_used:
            raise RuntimeError(
                "A non-persistent GradientTape can only be used to compute one set of gradients "
                "(or jacobians). Use tf.GradientTape(persistent=True)."
            )
        self._was_used = True
        self.close(capture)

    def watches(self, source: Any, value: torch.Tensor) -> bool:
        """Returns whether a source, which has a value, has a gradient."""
        if id(source) in self._watched:
            return True
        if _is_any_variable(source):
            return bool(source.trainable and self._tape._watch_accessed_variables)
        return value.grad_fn is not None and self.has(value.grad_fn)

    def has(self, node: Any) -> bool:
        """Returns whether a node of PyTorch's graph was created while the tape was open."""
        number = node._sequence_nr()
        return any(start <= number and (end is None or number < end) for start, end in self._times)

    def check(self, targets: Iterable[torch.Tensor], sources: Iterable[torch.Tensor]) -> None:
        """Checks that each path of operations from a source to a target was recorded.

        Raises:
            Error: an operation on a path was not, so that TensorFlow's gradient leaves it out.
        """
        ends = {get_gradient_edge(each)[:2] for each in sources if each.requires_grad}
        remaining = [(*get_gradient_edge(each)[:2], False) for each in targets]
        seen = set()
        while remaining:
            node, number, is_outside = remaining.pop()
            if (node, number) in ends:
                if is_outside:
                    raise compiler_error(
                        "A gradient of this GradientTape depends on a source through operations "
                        "that another tape has recorded, but this one has not: for it, their "
                        "results are constants. Compute them in the context of this tape, or put "
                        "tf.stop_gradient around them."
                    )
                continue
            is_outside = is_outside or not self.has(node)
            if (node, is_outside) not in seen:
                seen.add((node, is_outside))
                remaining += [
                    (source, place, is_outside)
                    for source, place in node.next_functions
                    if source is not None
                ]


def _is_any_variable(value: Any) -> bool:
    return isinstance(value, keras.Variable) or is_variable(value)


def replacements() -> dict[str, Callable[..., Any]]:
    """Returns functions for methods of `tf.GradientTape` in a capture, without `gradient`."""
    refused = ("jacobian", "batch_jacobian", "watched_variables")
    return {
        "__enter__": _enter,
        "__exit__": _exit,
        "reset": _reset,
        "stop_recording": _stop_recording,
        "watch": _watch,
        **{name: _refused(name) for name in refused},
    }


def record_of(tape: Any) -> Record:
    """Returns the record of a tape."""
    found: Record = vars(tape).setdefault(_RECORD, Record(tape))
    return found


def _enter(capture: Capture, original: Any, tape: Any) -> Any:
    record_of(tape).open(capture)
    return tape


def _exit(capture: Capture, original: Any, tape: Any, *error: Any) -> None:
    record_of(tape).close(capture)


def _reset(capture: Capture, original: Any, tape: Any) -> None:
    record_of(tape).close(capture)
    vars(tape)[_RECORD] = Record(tape)
    record_of(tape).open(capture)


@contextmanager
def _stop_recording(capture: Capture, original: Any, tape: Any) -> Iterator[None]:
    record_of(tape).close(capture)
    try:
        yield
    finally:
        record_of(tape).open(capture)


def _watch(capture: Capture, original: Any, tape: Any, tensor: Any) -> None:
    record_of(tape).watch(left(tensor))


def _refused(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise compiler_error(
            f"GradientTape.{name} is not captured. Take gradients of the single elements with "
            "GradientTape(persistent=True)."
        )

    return refuse
