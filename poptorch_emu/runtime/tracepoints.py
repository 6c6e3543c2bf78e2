"""Stretches of time that the user has named, and the profiles that record them."""

from __future__ import annotations

import time
from collections.abc import Callable

# Functions of (channel, name, begin, end) in nanoseconds, one for each profile being written.
listeners: list[Callable[[str, str, int, int], None]] = []


def tell(channel: str, name: str, start_seconds: float) -> None:
    """Calls all listeners for a stretch that ends now; `start_seconds` is from `perf_counter`."""
    end_ns = round(time.perf_counter() * 1e9)
    for listener in tuple(listeners):
        listener(channel, name, round(start_seconds * 1e9), end_ns)
