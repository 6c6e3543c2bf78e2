"""Makes functions take turns on the IPUs: other threads wait, whichever function they run.

A function called by the data for which the running function waits cannot get a turn: an error.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from poptorch_emu.errors import compiler_error

# Longest duration of a read; after it, a data function that waits for its turn is its cause.
_PATIENCE_SECONDS = 2.0
# File of TensorFlow that calls Python for tf.py_function, numpy_function and from_generator.
_CALLS_OF_DATA = "script_ops.py"

_lock = threading.Lock()
_holder: int | None = None
_reading_since: float | None = None


@contextmanager
def turn() -> Iterator[None]:
    """Waits until no other thread has the turn, and takes it.

    Raises:
        Error: the holder of the turn waits for this call.
    """
    global _holder
    if _holder == threading.get_ident():
        raise compiler_error(
            "strategy.run is called within a function that strategy.run runs, or by its data. Call "
            "the inner function itself, or run one after the other."
        )
    while not _lock.acquire(timeout=_PATIENCE_SECONDS / 4):
        since = _reading_since
        is_long = since is not None and time.monotonic() - since > _PATIENCE_SECONDS
        if is_long and _is_called_by_data():
            raise compiler_error(
                "strategy.run is called by a function of data (tf.py_function, tf.numpy_function "
                "or from_generator), while a function on the IPU waits for these data. Compute "
                "these values on the host, or iterate over the data on the host and pass each "
                "element to strategy.run(..., args=[...])."
            )
    _holder = threading.get_ident()
    try:
        yield
    finally:
        _holder = None
        _lock.release()


@contextmanager
def reading() -> Iterator[None]:
    """Records that this thread waits for data, if it has the turn."""
    global _reading_since
    if _holder != threading.get_ident():
        yield
        return
    _reading_since = time.monotonic()
    try:
        yield
    finally:
        _reading_since = None


def _is_called_by_data() -> bool:
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith(_CALLS_OF_DATA):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
