"""Compilations without one of the rewrites of the engine's graph, for comparison."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from poptorch_emu.engine.rewrites import table


def leave_out(monkeypatch: pytest.MonkeyPatch, *rewrites: Callable) -> None:
    """Removes rewrites from the table while the patch lasts."""
    rest = tuple(each for each in table.REWRITES if each.apply not in rewrites)
    assert len(rest) == len(table.REWRITES) - len(rewrites)
    monkeypatch.setattr(table, "REWRITES", rest)
