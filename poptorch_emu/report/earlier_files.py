"""Completes reports from files of earlier versions: missing entries become "not known"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def complete(report: Any) -> None:
    """Adds the entries that earlier versions did not write to a report that was just read.

    Values that are no report stay unchanged, because `report_check.py` names their fault.
    """
    for insight in _dictionaries(report, "insights"):
        insight.setdefault("code", None)
    memory = report.get("memory") if isinstance(report, dict) else None
    for ipu in _dictionaries(memory, "ipus"):
        steps = ipu.get("steps")
        if isinstance(steps, dict) and isinstance(steps.get("names"), list):
            for name in ("direction", "block"):
                steps.setdefault(name, [""] * len(steps["names"]))
            steps.setdefault("largest", [[]] * len(steps["names"]))
        ipu.setdefault("live_names", [])
        ipu.setdefault("fullest_tile", None)
    if isinstance(memory, dict):
        memory.setdefault("fullest_note", "")


def _dictionaries(value: Any, name: str) -> Iterator[dict[str, Any]]:
    """Yields the dictionaries in the list `value[name]`; nothing if there is no such list."""
    entries = value.get(name) if isinstance(value, dict) else None
    yield from (each for each in entries or () if isinstance(each, dict))
