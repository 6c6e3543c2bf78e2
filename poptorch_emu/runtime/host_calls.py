"""Calls of host functions by a program, which keep raised exceptions with their tracebacks."""

from __future__ import annotations

import torch

from poptorch_emu.errors import Error
from poptorch_emu.trace.recording.regions import HostFunction


class HostCalls:
    """The host functions of one session; the thread that runs the session calls them."""

    def __init__(self) -> None:
        self._failure: BaseException | None = None

    def guarded(self, function: HostFunction) -> HostFunction:
        """Returns `function`, wrapped to keep the exception that it raises."""

        def call(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
            try:
                return function(inputs)
            except BaseException as failure:
                self._failure = failure
                raise

        return call

    def explain(self, error: BaseException) -> None:
        """Makes the exception of a host function the cause of the engine's error.

        An exception such as KeyboardInterrupt or SystemExit replaces the engine's error.
        """
        failure, self._failure = self._failure, None
        if isinstance(error, Error):
            if failure is not None and not isinstance(failure, Exception):
                raise failure from None
            error.__cause__ = failure
