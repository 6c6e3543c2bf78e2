"""Compilations that join as many micro-batches as a test says, or none."""

from __future__ import annotations

import pytest
from support.rewrites import leave_out

from poptorch_emu.engine.rewrites import joined_batches


def join(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Has so many micro-batches joined where that is possible, whether it pays or not; 1: none."""
    if count == 1:
        leave_out(monkeypatch, joined_batches.join_micro_batches)
        return
    monkeypatch.setattr(joined_batches, "_number_to_join", lambda window, *sizes: count)
    monkeypatch.setattr(joined_batches, "_LARGEST_SHARE", float("inf"))
