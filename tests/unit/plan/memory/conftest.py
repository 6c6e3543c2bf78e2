"""Makes the engine run single micro-batches, because memory plans describe that."""

from __future__ import annotations

import pytest
from support.rewrites import leave_out

from poptorch_emu.engine.rewrites.joined_batches import join_micro_batches


@pytest.fixture(autouse=True)
def _single_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disables the joining of micro-batches."""
    leave_out(monkeypatch, join_micro_batches)
