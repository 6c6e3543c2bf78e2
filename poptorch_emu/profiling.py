"""`poptorch.profiling`: named durations, recorded by the stand-in for `libpvti`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, TypeVar

from poptorch_emu.companions import libpvti

Instrumented = TypeVar("Instrumented")


class Channel:
    """A group of tracepoints (exact); logged at level debug if `PVTI_OPTIONS` enables it."""

    def __init__(self, name: str) -> None:
        """Opens the channel `name`."""
        self._channel = libpvti.createTraceChannel(name)

    def tracepoint(self, name: str) -> AbstractContextManager[Any]:
        """Returns a context manager whose duration is recorded as `name` (exact)."""
        return libpvti.Tracepoint(self._channel, name)

    def instrument(self, obj: Instrumented, *methods: str) -> Instrumented:
        """Makes each call of these methods of `obj` a tracepoint; returns `obj` (exact)."""
        libpvti.instrument(obj, list(methods), self._channel)
        return obj
