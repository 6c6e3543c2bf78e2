"""`libpvti`: trace channels of the system analyser.

Tracepoints are written to the profile of each model that runs with profiling. If `PVTI_OPTIONS`
enables tracing, the end of each tracepoint and each value of a graph is also logged at level
debug.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

from poptorch_emu.environment import object_of
from poptorch_emu.errors import Error
from poptorch_emu.log import logger
from poptorch_emu.runtime.tracepoints import tell

__all__ = [
    "Graph",
    "HeatmapDouble",
    "TraceChannel",
    "Tracepoint",
    "checkTracingEnabled",
    "createTraceChannel",
    "instrument",
    "instrument_fn",
]

# Start time of each tracepoint that `Tracepoint.begin` opened, by channel and name.
_begun: dict[tuple[str, str], float] = {}


class TraceChannel:
    """A named group of tracepoints (accepted)."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"TraceChannel({self.name!r})"


def createTraceChannel(name: str) -> TraceChannel:
    """Returns a new channel (accepted)."""
    return TraceChannel(name)


def checkTracingEnabled() -> bool:
    """Returns whether `PVTI_OPTIONS` contains `"enable": "true"` (exact)."""
    options = _options_of(os.environ.get("PVTI_OPTIONS", ""))
    return str(options.get("enable", "")).lower() in ("true", "1")


@functools.cache
def _options_of(text: str) -> dict[str, Any]:
    """Returns the options of the variable's text; the cache makes a bad text warn only once."""
    try:
        return object_of("PVTI_OPTIONS", '{"enable": "true"}')
    except Error as error:
        logger.warning("%s Nothing is traced.", error.message)
        return {}


class Tracepoint:
    """A stretch of time: a `with` statement, or from `begin` to `end` (accepted)."""

    def __init__(self, channel: TraceChannel, name: str) -> None:
        self._channel = channel
        self._name = name
        self._start_seconds = 0.0

    def __enter__(self) -> Tracepoint:
        """Starts the clock."""
        self._start_seconds = time.perf_counter()
        return self

    def __exit__(self, *failure: object) -> None:
        """Records the tracepoint."""
        tell(self._channel.name, self._name, self._start_seconds)
        if checkTracingEnabled():
            milliseconds = 1e3 * (time.perf_counter() - self._start_seconds)
            logger.debug("%s: %s took %.3f ms", self._channel.name, self._name, milliseconds)

    @staticmethod
    def begin(channel: TraceChannel, name: str) -> None:
        """Begins a tracepoint without a `with` statement (accepted)."""
        _begun[channel.name, name] = time.perf_counter()
        _log(channel.name, name, "begin")

    @staticmethod
    def end(channel: TraceChannel, name: str) -> None:
        """Ends a tracepoint (accepted); one that was never begun is only logged."""
        start_seconds = _begun.pop((channel.name, name), None)
        if start_seconds is not None:
            tell(channel.name, name, start_seconds)
        _log(channel.name, name, "end")


def instrument_fn(
    channel: TraceChannel, function: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Returns `function` as a tracepoint, or a decorator if `function` is `None` (accepted)."""
    if function is None:
        return functools.partial(instrument_fn, channel)
    traced = function

    @functools.wraps(traced)
    def call_in_tracepoint(*args: Any, **kwargs: Any) -> Any:
        with Tracepoint(channel, traced.__name__):
            return traced(*args, **kwargs)

    return call_in_tracepoint


def instrument(obj: Any, methods: Iterable[str], channel: TraceChannel) -> None:
    """Makes each call of these methods of `obj` a tracepoint (accepted)."""
    for name in methods:
        setattr(obj, name, instrument_fn(channel, getattr(obj, name)))


class _Series:
    """One line of a graph."""

    def __init__(self, name: str) -> None:
        self._name = name

    def add(self, value: float) -> None:
        """Logs one value (accepted)."""
        _log("graph", self._name, str(value))


class Graph:
    """Counters over time (accepted)."""

    def __init__(self, name: str, unit: str = "") -> None:
        self._name = name
        self._unit = unit

    def addSeries(self, name: str) -> _Series:
        """Returns a new line of the graph; its `add(value)` records a value."""
        return _Series(f"{self._name}: {name}" + (f" [{self._unit}]" if self._unit else ""))


class HeatmapDouble:
    """Histograms over time (accepted)."""

    def __init__(self, name: str, edges: Iterable[float] = (), unit: str = "") -> None:
        self._name = name

    def add(self, values: Iterable[float]) -> None:
        """Logs the number of values (accepted)."""
        _log("heatmap", self._name, f"{len(list(values))} values")


def _log(group: str, name: str, event: str) -> None:
    if checkTracingEnabled():
        logger.debug("%s: %s %s", group, name, event)
