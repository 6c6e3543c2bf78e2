"""Stretches of time that the user has named, and who wants to hear of them."""

from __future__ import annotations

import time
from collections.abc import Callable

# Called with channel, name, and begin and end in nanoseconds: the profiles that are being written.
listeners: list[Callable[[str, str, int, int], None]] = []


def tell(channel: str, name: str, start_seconds: float) -> None:
    """Tells all listeners of a stretch that ends now; it began at a time of `perf_counter`."""
    end_ns = round(time.perf_counter() * 1e9)
    for listener in tuple(listeners):
        listener(channel, name, round(start_seconds * 1e9), end_ns)
