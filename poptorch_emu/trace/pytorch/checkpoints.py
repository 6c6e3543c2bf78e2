"""Marks that the user sets on values: keep for backward, recompute, or compute with less memory.

`recomputationCheckpoint` and `set_available_memory` leave a mark. At the end of the trace, each
mark goes into the record of the operation, which every pass preserves. A call of
`torch.utils.checkpoint.checkpoint` has a number, which the records of its operations hold. All of
these operations are recomputed, except those that compute the results of the call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.utils.checkpoint
from torch import fx

from poptorch_emu.ir.graph import operation_of, record_of
from poptorch_emu.torch_versions import CHECKPOINT_GENERATOR
from poptorch_emu.trace.pytorch.patches import patched

# A value, and the fields for the record of its operation.
_Mark = tuple[torch.Tensor, dict[str, Any]]


class _OfThread(threading.local):
    """The marks of the trace that a thread runs, `None` without one, and its checkpointed calls."""

    marks: list[_Mark] | None = None
    num_calls = 0
    open_call = 0


_of_thread = _OfThread()


def start_marks() -> None:
    """Begins to collect the marks of a trace."""
    _of_thread.marks, _of_thread.num_calls = [], 0


def mark(value: torch.Tensor, **fields: Any) -> None:
    """Notes fields for the record of the operation that computes `value`; only within a trace."""
    if _of_thread.marks is not None:
        _of_thread.marks.append((value, fields))


def take_marks() -> list[_Mark]:
    """Ends the collection and returns the marks."""
    marks, _of_thread.marks = _of_thread.marks or [], None
    return marks


def apply_marks(find: Callable[[torch.Tensor], fx.Node | None]) -> None:
    """Ends the collection, and writes the marks into the records of the operations."""
    for value, fields in take_marks():
        node = find(value)
        if node is not None and node.op == "call_function":
            operation = operation_of(node)
            operation.meta["record"] = replace(record_of(operation), **fields)


def open_call() -> int:
    """Returns the number of the checkpointed call that is running, or 0."""
    return _of_thread.open_call


@contextmanager
def _checkpointed() -> Iterator[None]:
    """Numbers the operations that run in the context; an inner call belongs to the outer one."""
    before = _of_thread.open_call
    if not before:
        _of_thread.num_calls += 1
        _of_thread.open_call = _of_thread.num_calls
    try:
        yield
    finally:
        _of_thread.open_call = before


def _around_call(*_: Any, **__: Any) -> Iterator[None]:
    """Replaces the generator that PyTorch runs around a checkpointed function."""
    with _checkpointed():
        yield


def _run_once(function: Callable[..., Any], preserves_random_state: bool, *args: Any) -> Any:
    """Stands for PyTorch's function of autograd, which differentiates while it differentiates.

    Random numbers are the same when `function` is run again anyway.
    """
    with _checkpointed():
        return function(*args)


@contextmanager
def marks_checkpointed_calls() -> Iterator[None]:
    """Makes `torch.utils.checkpoint.checkpoint` leave recomputation to the compiler.

    Internal parts of the function are replaced, because users import the function itself by name.
    """
    with (
        patched(torch.utils.checkpoint.CheckpointFunction, apply=staticmethod(_run_once)),
        patched(torch.utils.checkpoint, **{CHECKPOINT_GENERATOR: _around_call}),
    ):
        yield
