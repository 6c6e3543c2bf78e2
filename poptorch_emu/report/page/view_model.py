"""The content of a page as plain dictionaries and lists, computed by a pure function.

Values that are not known are None or an empty list, never zero, and the page says so. Large tables
are stored as columns, which are shorter than rows. The page's scripts read these names.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from poptorch_emu.machine.spread import weights
from poptorch_emu.machine.tile_memory import IpuMemory, TileMemory
from poptorch_emu.plan.tiles.tile_contents import Level
from poptorch_emu.plan.tiles.tile_values import TileValue
from poptorch_emu.plan.time.time_plan import TimePlan
from poptorch_emu.report.bottleneck_text import bottleneck_text
from poptorch_emu.report.page.advice import advice, refusals, ways_out
from poptorch_emu.report.page.insights import insights
from poptorch_emu.report.page.page_content import PageContent
from poptorch_emu.report.page.view_graph import graph_view, operation_columns
from poptorch_emu.report.page.view_numbers import numbers_view
from poptorch_emu.report.page.view_options import option_rows
from poptorch_emu.report.page.view_timeline import engine_timeline, machine_timeline
from poptorch_emu.schedule.free_run import unit_lengths


def view_model(content: PageContent) -> dict[str, Any]:
    """Returns the content of a report's page, which can be written as JSON."""
    time, tiles = content.time, content.tiles
    view: dict[str, Any] = {
        "name": content.name,
        "mode": "training" if content.config.is_training else "inference",
        "written": content.written,
        "versions": [list(pair) for pair in content.versions.items()],
        "machine": _machine(content),
        "facts": _facts(content),
        "fits": None if tiles is None else tiles.fits,
        "verdict": None if tiles is None else tiles.worst_verdict,
        "speed": _speed(content),
        "bottleneck": None if time is None else bottleneck_text(time),
        "ipus": _ipus(time, tiles),
        "timelines": _timelines(content),
        "memory": memory_view(content),
        "operations": {} if time is None else operation_columns(time, content.inventory),
        "graph": graph_view(content),
        "options": option_rows(content.config),
        "numbers": numbers_view(content.numerics),
        "log": _log(content),
        "process_id": os.getpid(),
    }
    view["insights"] = insights(view, advice(content), refusals(content))
    return view


def _log(content: PageContent) -> list[dict[str, str]] | None:
    if content.log is None:
        return None
    return [{"time": time, "level": level, "text": text} for time, level, text in content.log]


def _machine(content: PageContent) -> dict[str, Any]:
    time, tiles = content.time, content.tiles
    chip = None if tiles is None else tiles.chip
    return {
        "system": None if time is None else time.system,
        "chip": None if time is None else time.chip,
        "num_ipus": len(time.ipus) if time else len(tiles.ipus) if tiles else None,
        "num_replicas": content.config.replication_factor,
        "num_tiles": None if chip is None else chip.num_tiles,
        "num_compute_tiles": None if tiles is None else tiles.num_compute_tiles,
        "clock_hz": None if time is None else time.clock_hz,
        "tile_bytes": None if chip is None else chip.tile_bytes,
    }


def _facts(content: PageContent) -> list[list[Any]]:
    time = content.time
    if time is None:
        return []
    return [
        ["Schedule", time.grid.name],
        ["Micro-batches in a window", f"{time.grid.num_micro_batches:,}"],
        ["Windows in a step", f"{time.num_windows:,}"],
        *_bubble(time),
        ["Least certain input of the figures", time.evidence],
        *(["Rough", reason] for reason in time.rough),
        *(["Assumed", text] for text in time.assumptions),
    ]


def _bubble(time: TimePlan) -> list[list[Any]]:
    """Returns the share of the time that IPUs wait, if there are several."""
    if len(time.ipus) < 2:
        return []
    window = time.grid
    by_cycles = window.bubble(time.cycles_of)
    in_units = f"{window.bubble(unit_lengths):.1%} if forward and both halves of backward are equal"
    return [["Bubble", f"{by_cycles:.1%} by cycles; {in_units}"]]


def _speed(content: PageContent) -> dict[str, Any]:
    time, run = content.time, content.run
    rows = None if time is None else time.samples_per_step
    seconds = None if run is None else run.step_seconds
    return {
        "predicted_rows_per_second": None if time is None else time.throughput,
        "likely_rows_per_second": None if time is None or not time.speed else time.speed.interval,
        "spread_weights": None if time is None else weights(time.amounts),
        "predicted_step_seconds": None
        if time is None or time.throughput is None
        else time.step_seconds,
        "measured_rows_per_second": rows / seconds if rows and seconds else None,
        "measured_step_seconds": seconds,
        "rows_per_step": rows,
    }


def _ipus(time: TimePlan | None, tiles: TileMemory | None) -> list[dict[str, Any]]:
    times = {ipu.ipu: ipu.seconds for ipu in time.ipus} if time else {}
    parts = {ipu: {p.word: s for p, s in seconds.items()} for ipu, seconds in times.items()}
    memories = {ipu.ipu: ipu for ipu in tiles.ipus} if tiles else {}
    return [
        {"ipu": ipu, **_tile_figures(tiles, memories.get(ipu)), "parts": parts.get(ipu)}
        for ipu in sorted(times.keys() | memories.keys())
    ]


def _tile_figures(tiles: TileMemory | None, memory: IpuMemory | None) -> dict[str, Any]:
    if tiles is None or memory is None:
        return dict.fromkeys(
            ("fullest_tile_bytes", "likely_tile_bytes", "mean_tile_bytes", "limit_bytes")
        )
    return {
        "fullest_tile_bytes": tiles.largest_bytes(memory),
        "likely_tile_bytes": tiles.fullest(memory).interval,
        "mean_tile_bytes": tiles.mean_bytes(memory),
        "limit_bytes": tiles.chip.tile_bytes,
    }


def _timelines(content: PageContent) -> list[dict[str, Any]]:
    made = []
    if content.time is not None:
        made.append(machine_timeline(content.time, content.inventory))
    if content.run is not None and content.run.events:
        made.append(engine_timeline(content.run))
    return made


def memory_view(content: PageContent) -> dict[str, Any]:
    """Returns the memory of a tile of each IPU, and the savings of other settings."""
    tiles = content.tiles
    ipus = [] if tiles is None else [_memory_of(content, tiles, ipu) for ipu in tiles.ipus]
    return {
        "ipus": ipus,
        "steps_note": "Bytes on the average tile, at each operation that an IPU runs for a "
        "micro-batch.",
        "tiles_note": "By the model of the machine: small tensors lie on the first tiles, at least "
        "128 bytes on each; everything else is spread evenly. Real programs are less "
        "even: the dotted line is their fullest tile, estimated from published programs.",
        "fullest_note": "By the model of the machine: each tensor is spread evenly over the tiles, "
        "and 'uneven spread' is the difference between the fullest and the mean tile, as estimated "
        "from published programs.",
        "ways_out": ways_out(content),
    }


def _memory_of(content: PageContent, tiles: TileMemory, memory: IpuMemory) -> dict[str, Any]:
    always = {name for name, _ in memory.always_live}
    parts = tiles.parts(memory)
    return {
        "ipu": memory.ipu,
        "limit_bytes": tiles.chip.tile_bytes,
        "fullest_tile_bytes": tiles.largest_bytes(memory),
        "fullest_tile": _fullest_tile(content.fullest.get(memory.ipu) or ()),
        "steps": _steps(content, tiles, memory),
        "live_names": list(_names_of(content.levels.get(memory.ipu) or ())),
        "peak": {
            "name": memory.peak.at,
            "tensors": [
                {"name": name, "bytes": -(-num_bytes // tiles.num_compute_tiles)}
                for name, num_bytes in memory.peak.largest
            ],
        },
        # For each category, [bytes, number of tiles] in the order of the tiles.
        "tiles": {
            name: [list(run) for run in runs]
            for name, runs in content.spread.get(memory.ipu, {}).items()
        }
        or None,
        "categories": [
            {
                "name": name,
                "bytes": num_bytes,
                "live": "always" if name in always or "peak" not in name else "not always",
            }
            for name, num_bytes in parts.items()
        ],
    }


def _fullest_tile(values: Sequence[TileValue]) -> dict[str, list[Any]] | None:
    """Returns the values on the fullest tile as columns."""
    if not values:
        return None
    return {
        field.name: [getattr(value, field.name) for value in values] for field in fields(TileValue)
    }


def _steps(content: PageContent, tiles: TileMemory, memory: IpuMemory) -> dict[str, Any] | None:
    """Returns the memory of a tile at each operation, always live and not always live."""
    levels = content.levels.get(memory.ipu)
    if not levels:
        return None
    num_tiles = tiles.num_compute_tiles
    names = _names_of(levels)
    peak = memory.peak.num_bytes / num_tiles + memory.peak.temporary_bytes
    return {
        "names": [level.held.at for level in levels],
        "direction": [level.direction for level in levels],
        "block": [level.block for level in levels],
        "always": [round(tiles.mean_bytes(memory) - peak)] * len(levels),
        "live": [
            round(level.held.num_bytes / num_tiles + level.held.temporary_bytes) for level in levels
        ],
        # For each operation, [number of the name, bytes] of the largest live values.
        "largest": [
            [[names[name], -(-size // num_tiles)] for name, size in level.held.largest]
            for level in levels
        ],
    }


def _names_of(levels: Sequence[Level]) -> dict[str, int]:
    """Returns a number for the name of each value that is live at some operation."""
    names = dict.fromkeys(name for level in levels for name, _ in level.held.largest)
    return {name: number for number, name in enumerate(names)}
