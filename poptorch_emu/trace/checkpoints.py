"""What the user says of single values: kept for backward, computed again, or made with less memory.

`recomputationCheckpoint` and `set_available_memory` leave a mark; at the end of the trace the mark
goes into the record of the operation, which every pass carries on. What runs inside
`torch.utils.checkpoint.checkpoint` is computed again but for its results: each call has a number,
which the records hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.utils.checkpoint
from torch import fx

from poptorch_emu.ir.graph import operation_of, record_of
from poptorch_emu.torch_versions import CHECKPOINT_GENERATOR
from poptorch_emu.trace.patches import patched

# The value, and what its operation's record is to say.
_Mark = tuple[torch.Tensor, dict[str, Any]]

_marks: list[_Mark] | None = None
_num_calls = 0
_open_call = 0


def start_marks() -> None:
    """Begins to collect the marks of a trace."""
    global _marks, _num_calls
    _marks, _num_calls = [], 0


def mark(value: torch.Tensor, **fields: Any) -> None:
    """Notes fields for the record of what makes `value`; outside a trace, does nothing."""
    if _marks is not None:
        _marks.append((value, fields))


def take_marks() -> list[_Mark]:
    """Ends the collection and returns the marks."""
    global _marks
    marks, _marks = _marks or [], None
    return marks


def apply_marks(find: Callable[[torch.Tensor], fx.Node | None]) -> None:
    """Ends the collection and writes it into the records of the operations that `find` knows."""
    for value, fields in take_marks():
        node = find(value)
        if node is not None and node.op == "call_function":
            operation = operation_of(node)
            operation.meta["record"] = replace(record_of(operation), **fields)


def open_call() -> int:
    """Returns the number of the checkpointed call that is running, or 0."""
    return _open_call


@contextmanager
def _checkpointed() -> Iterator[None]:
    """Gives a number to what runs in the context; a call inside another one belongs to it."""
    global _num_calls, _open_call
    before = _open_call
    if not before:
        _num_calls += 1
        _open_call = _num_calls
    try:
        yield
    finally:
        _open_call = before


def _around_call(*_: Any, **__: Any) -> Iterator[None]:
    """Stands for the generator that PyTorch runs around a function it checkpoints."""
    with _checkpointed():
        yield


class _Reentrant:
    """Stands for PyTorch's function of autograd, which differentiates while it differentiates."""

    @staticmethod
    def apply(function: Callable[..., Any], preserves_random_state: bool, *args: Any) -> Any:
        """Runs `function`; random numbers are the same when it is run again anyway."""
        with _checkpointed():
            return function(*args)


@contextmanager
def marks_checkpointed_calls() -> Iterator[None]:
    """Makes `torch.utils.checkpoint.checkpoint` leave recomputation to the compiler.

    Its parts are replaced, not itself: users import it by name.
    """
    with patched(
        torch.utils.checkpoint,
        CheckpointFunction=_Reentrant,
        **{CHECKPOINT_GENERATOR: _around_call},
    ):
        yield
