"""Plans are of the machine, which runs single micro-batches; so must the engine that counts."""

from __future__ import annotations

import pytest
from support.rewrites import leave_out

from poptorch_emu.engine.rewrites.joined_batches import join_micro_batches


@pytest.fixture(autouse=True)
def _single_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves joining out."""
    leave_out(monkeypatch, join_micro_batches)
