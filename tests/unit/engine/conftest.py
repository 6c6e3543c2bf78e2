"""What makes large products, for tests that ask for one of both ways."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.panels import panels

from poptorch_emu import _C


@pytest.fixture
def with_panels() -> Iterator[None]:
    """Has the engine's kernel make them, on any processor that has vectors."""
    if _C.vector_width() == 0:
        pytest.skip("the engine's kernel is for wide vectors")
    with panels(True):
        yield


@pytest.fixture
def without_panels() -> Iterator[None]:
    """Has libraries make them."""
    with panels(False):
        yield
