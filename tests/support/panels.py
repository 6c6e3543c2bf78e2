"""What makes large products, whatever the processor is that runs the tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from poptorch_emu import _C


@contextmanager
def panels(is_asked: bool) -> Iterator[None]:
    """Has the engine's kernel by panels make them, where there are vectors for it, or libraries."""
    before = _C.set_multiplies_by_panels(is_asked)
    try:
        yield
    finally:
        _C.set_multiplies_by_panels(before)
