"""Functions of the host that a program calls: keeps what they raise, with its traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Makes what a host function raised the cause of the engine's error.

        What is no ordinary exception (Ctrl-C, an exit) passes as it is.
        """
        try:
            yield
        except Error as error:
            if self._failure is not None and not isinstance(self._failure, Exception):
                raise self._failure from None
            raise error from self._failure
        finally:
            self._failure = None
