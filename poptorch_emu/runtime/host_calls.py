"""Functions of the host that a program calls: keeps what they raise, with its traceback."""

from __future__ import annotations

import torch

from poptorch_emu.errors import Error
from poptorch_emu.trace.regions import HostFunction


class HostCalls:
    """The host functions of one session. All are called by the thread that runs the session."""

    def __init__(self) -> None:
        self._failure: BaseException | None = None

    def guarded(self, function: HostFunction) -> HostFunction:
        """Returns `function`, but keeps what it raises."""

        def call(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
            try:
                return function(inputs)
            except BaseException as failure:
                self._failure = failure
                raise

        return call

    def explain(self, error: BaseException) -> None:
        """Makes what a host function raised the cause of the engine's error.

        What is no ordinary exception (Ctrl-C, an exit) takes its place.
        """
        failure, self._failure = self._failure, None
        if isinstance(error, Error):
            if failure is not None and not isinstance(failure, Exception):
                raise failure from None
            error.__cause__ = failure
