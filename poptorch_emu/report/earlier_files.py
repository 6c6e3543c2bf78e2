"""What files of reports lack that earlier versions wrote: it is added, as not known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def complete(report: Any) -> None:
    """Adds to a report, as it was read, what earlier versions did not write.

    What is no report at all is left as it is: `report_check.py` tells what is wrong with it.
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


def _dictionaries(value: Any, name: str) -> Iterator[dict[str, Any]]:
    """Yields the dictionaries of a list that is an entry of another one."""
    entries = value.get(name) if isinstance(value, dict) else None
    yield from (each for each in entries or () if isinstance(each, dict))
