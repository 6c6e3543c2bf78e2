"""Calls callbacks of batches for each step of an execution, instead of once for all steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from keras.src import callbacks

_OF_KERAS = callbacks.CallbackList

# Logs of each step of the last execution, if callbacks are called for each step.
_logs: ContextVar[Sequence[Any] | None] = ContextVar("logs", default=None)


class StepCallbacks(_OF_KERAS):  # type: ignore[misc, valid-type]
    """Calls callbacks as Keras does, or for each step once the execution is complete."""

    _first_step = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Begins an execution."""
        self._first_step = batch
        if _logs.get() is None:
            super().on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Ends an execution."""
        if _logs.get() is None:
            super().on_train_batch_end(batch, logs)
        for step, of_step in self._steps():
            super().on_train_batch_begin(step)
            super().on_train_batch_end(step, of_step)

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Begins an execution."""
        self._first_step = batch
        if _logs.get() is None:
            super().on_test_batch_begin(batch, logs)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Ends an execution."""
        if _logs.get() is None:
            super().on_test_batch_end(batch, logs)
        for step, of_step in self._steps():
            super().on_test_batch_begin(step)
            super().on_test_batch_end(step, of_step)

    def _steps(self) -> Iterator[tuple[int, Any]]:
        # The list is a copy, because a callback may evaluate the model, which has other steps.
        return enumerate(list(_logs.get() or ()), self._first_step)


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


callbacks.CallbackList = StepCallbacks
