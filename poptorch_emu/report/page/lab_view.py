"""The content of a laboratory page: a plan for each choice of settings, as plain values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from poptorch_emu.compile.planner import Planned
from poptorch_emu.plan.time.step_parts import Group
from poptorch_emu.report.bottleneck_text import bottleneck_text
from poptorch_emu.report.page.view_timeline import machine_timeline
from poptorch_emu.schedule.free_run import unit_lengths

_WAITS = (Group.HOST, Group.WAIT)


def lab_view(
    name: str,
    settings: Mapping[str, Sequence[object]],
    plans: Iterable[Planned | str],
    start: Sequence[int],
) -> dict[str, Any]:
    """Returns the content of a laboratory page, which can be written as JSON.

    Args:
        name: name of the model.
        settings: possible values of each setting.
        plans: plan for each choice, or the reason why it has none; the last setting varies fastest.
        start: index of the value that is chosen at first, for each setting.
    """
    points = [{"fault": plan} if isinstance(plan, str) else _point(plan) for plan in plans]
    count = math.prod(map(len, settings.values()))
    assert len(points) == count, f"{count} choices have a plan each, not {len(points)}"
    return {
        "name": name,
        "settings": [
            {"name": setting, "values": [str(value) for value in values]}
            for setting, values in settings.items()
        ],
        "start": list(start),
        "points": points,
    }


def _point(plan: Planned) -> dict[str, Any]:
    time, tiles = plan.time, plan.tiles
    window = time.grid
    return {
        "fault": None,
        "clock_hz": time.clock_hz,
        "rows_per_second": time.throughput,
        "likely_rows_per_second": None if time.speed is None else list(time.speed.interval),
        "step_seconds": time.step_seconds,
        "rows_per_step": time.samples_per_step,
        "num_ipus": len(time.ipus) * time.num_replicas,
        "num_micro_batches": time.grid.num_micro_batches,
        "shares": {part.word: share for part, share in time.shares.items()},
        "waits": sum(share for part, share in time.shares.items() if part.group in _WAITS),
        "bubble": window.bubble(time.cycles_of),
        "bubble_if_alike": window.bubble(unit_lengths),
        "fits": tiles.worst_verdict,
        "limit_bytes": tiles.chip.tile_bytes,
        "fullest_bytes": [[ipu.ipu, tiles.largest_bytes(ipu)] for ipu in tiles.ipus],
        "likely_fullest_bytes": [[ipu.ipu, *tiles.fullest(ipu).interval] for ipu in tiles.ipus],
        "limited_by": bottleneck_text(time),
        "timeline": machine_timeline(time, None),
    }
