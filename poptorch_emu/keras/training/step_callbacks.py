"""Calls callbacks of batches for each step of an execution, instead of once for all steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from keras.callbacks import CallbackList

from poptorch_emu.keras.replacement import replace_functions

# Logs of each step of the last execution, if callbacks are called for each step.
_logs: ContextVar[Sequence[Any] | None] = ContextVar("logs", default=None)


@contextmanager
def called_back_with(logs: Sequence[Any] | None) -> Iterator[None]:
    """Lets Keras call callbacks for each step.

    Args:
        logs: list that holds, after each execution, the logs of each of its steps; `None` to call
            callbacks once for each execution.
    """
    token = _logs.set(logs)
    try:
        yield
    finally:
        _logs.reset(token)


def _begin(begin: Callable[..., None], callbacks: Any, batch: int, logs: Any = None) -> None:
    """Begins an execution, whose first step is `batch`."""
    callbacks.first_step = batch
    if _logs.get() is None:
        begin(callbacks, batch, logs)


def _end(
    begin: str, end: Callable[..., None], callbacks: Any, batch: int, logs: Any = None
) -> None:
    """Ends an execution; calls callbacks for the begin and the end of each of its steps."""
    of_steps = _logs.get()
    if of_steps is None:
        end(callbacks, batch, logs)
        return
    # The list is a copy, because a callback may evaluate the model, which has other steps.
    steps = enumerate(list(of_steps), callbacks.first_step)
    with called_back_with(None):
        for step, of_step in steps:
            getattr(callbacks, begin)(step)
            end(callbacks, step, of_step)


for _kind in ("train", "test"):
    _begins, _ends = f"on_{_kind}_batch_begin", f"on_{_kind}_batch_end"
    replace_functions(CallbackList, **{_begins: _begin})
    replace_functions(CallbackList, **{_ends: partial(_end, _begins)})
