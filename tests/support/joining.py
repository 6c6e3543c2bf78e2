"""Compilations that join a fixed number of micro-batches, or none."""

from __future__ import annotations

import pytest
from support.rewrites import leave_out

from poptorch_emu.engine.rewrites import joined_batches


def join(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Makes compilations join `count` micro-batches if possible, even at a loss; 1 joins none."""
    if count == 1:
        leave_out(monkeypatch, joined_batches.join_micro_batches)
        return
    monkeypatch.setattr(joined_batches, "_number_to_join", lambda window, *sizes: count)
    monkeypatch.setattr(joined_batches, "_LARGEST_SHARE", float("inf"))
