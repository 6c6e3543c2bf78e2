"""Suggested changes for speed and for memory, as sentences with lines of code.

The numbers come from plans with the changes applied, not from rules of thumb.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from poptorch_emu.compile.fitting import Fitting, Way
from poptorch_emu.compile.remedies import Remedy
from poptorch_emu.machine.ipu import KIB
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.time.causes import Cause
from poptorch_emu.report.page.page_content import PageContent
from poptorch_emu.report.remedy_text import advice_text, remedy_text, update_text
from poptorch_emu.report.settings_code import settings_code
from poptorch_emu.report.terms import in_sentence


def advice(content: PageContent) -> list[dict[str, Any]]:
    """Returns one `{"kind", "text", "code"}` for each worthwhile change, the most urgent first.

    Args:
        content: content of a report.
    """
    found = content.fitting
    of_fit = []
    if found is not None and not found.now.tiles.is_within:
        of_fit = [_to_fit(found, content.inventory)]
    return [*of_fit, *(_of_speed(one) for one in content.remedies if one.loss is not None)]


def refusals(content: PageContent) -> list[dict[str, Any]]:
    """Returns entries of the same form on things that a real system refuses at any speed."""
    return [_of_speed(remedy) for remedy in content.remedies if remedy.loss is None]


def ways_out(content: PageContent) -> list[dict[str, Any]]:
    """Returns the saving of each single change on the fullest tile."""
    found = content.fitting
    if found is None:
        return []
    now = found.now
    return [
        {
            "name": advice_text(way.settings),
            "saves_bytes": now.tiles.most_bytes - way.planned.tiles.most_bytes,
            "then_bytes": way.planned.tiles.most_bytes,
            "slower": _slower(found, way),
            "text": settings_code(way.settings, way.planned),
        }
        for way in found.singles
    ]


def _of_speed(remedy: Remedy) -> dict[str, Any]:
    planned = remedy.planned
    code = None if planned is None else settings_code(remedy.settings, planned)
    is_good = remedy.loss is not None and remedy.loss.cause is Cause.COMPUTE
    kind = "problem" if remedy.loss is None else "good" if is_good else "warning"
    return {"kind": kind, "text": remedy_text(remedy), "code": code}


def _to_fit(found: Fitting, inventory: Inventory | None) -> dict[str, Any]:
    if found.best is None:
        return {"kind": "problem", "text": " ".join(_nothing_fits(found, inventory)), "code": None}
    best = found.best
    text, slower = advice_text(best.settings), _slower(found, best)
    is_close = best.planned.tiles.worst_verdict == "close"
    verdict = "it may fit" if is_close else "it fits"
    speed = "" if slower is None else _speed(1 / slower)
    factor = best.planned.time.rows_per_update / found.now.time.rows_per_update
    return {
        "kind": "problem",
        "text": f"{text[0].upper()}{text[1:]}, and {verdict}: the fullest tile then holds "
        f"{_of_limit(best)}.{speed}{update_text(factor)}",
        "code": settings_code(best.settings, best.planned),
    }


def _nothing_fits(found: Fitting, inventory: Inventory | None) -> Iterator[str]:
    nearest = found.nearest
    yield "Nothing that was tried makes the model fit."
    if nearest.settings:
        text = advice_text(nearest.settings)
        yield f"It comes nearest if you {text}: the fullest tile then needs {_of_limit(nearest)}."
    tiles = nearest.planned.tiles
    ipu = max(tiles.ipus, key=tiles.largest_bytes)
    name, num_bytes = max(tiles.parts(ipu).items(), key=lambda part: part[1])
    yield (
        f"The largest single need, {num_bytes / KIB:,.0f} KiB of a tile of IPU {ipu.ipu}, is "
        f"{in_sentence(name)}"
        + (f", during {ipu.peak.at}." if "peak" in name and ipu.peak.at else ".")
    )
    if inventory is not None and _has_float32(inventory):
        yield "In float16, by model.half(), weights and activations take half as much."


def _has_float32(inventory: Inventory) -> bool:
    states = "___"  # Occurs in names of optimiser states, which may be float32 in any model.
    variables = inventory.variables.items()
    return any(each.dtype is torch.float32 for name, each in variables if states not in name)


def _speed(factor: float) -> str:
    return f" The model of the machine predicts {factor:.2f} × as many rows a second."


def _of_limit(way: Way) -> str:
    limit = way.planned.tiles.chip.tile_bytes
    return f"{way.planned.tiles.most_bytes / KIB:,.0f} of {limit / KIB:,.0f} KiB"


def _slower(found: Fitting, way: Way) -> float | None:
    """Returns the factor by which a row takes longer; `None` if it is unknown."""
    now, then = found.now.time.throughput, way.planned.time.throughput
    return now / then if now and then else None
