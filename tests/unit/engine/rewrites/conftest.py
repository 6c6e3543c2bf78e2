"""The rewrites of this room are tested on the operations of single micro-batches."""

from __future__ import annotations

import pytest
from support.rewrites import leave_out

from poptorch_emu.engine.rewrites.joined_batches import join_micro_batches


@pytest.fixture(autouse=True)
def _single_micro_batches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disables joining, which has its own tests."""
    if request.path.name not in ("test_table.py", "test_joined_batches.py"):
        leave_out(monkeypatch, join_micro_batches)
