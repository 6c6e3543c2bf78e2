"""What makes large products, whatever the processor is that runs the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from poptorch_emu import _C


def _with_panels(is_asked: bool) -> Iterator[None]:
    before = _C.set_multiplies_by_panels(is_asked)
    yield
    _C.set_multiplies_by_panels(before)


@pytest.fixture
def with_panels() -> Iterator[None]:
    """Has the engine's kernel make them, on any processor that has vectors."""
    if _C.vector_width() == 0:
        pytest.skip("the engine's kernel is for wide vectors")
    yield from _with_panels(True)


@pytest.fixture
def without_panels() -> Iterator[None]:
    """Has libraries make them."""
    yield from _with_panels(False)
