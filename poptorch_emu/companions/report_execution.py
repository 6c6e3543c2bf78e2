"""Execution part of a `pva` report: steps of the IPUs in a window, and the calls that ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from poptorch_emu.companions.report_programs import Row, program_of
from poptorch_emu.companions.report_sections import ByTile, Section, used_tiles
from poptorch_emu.report.profile_reader import read_calls
from poptorch_emu.report.trace_operations import placed, rows_by_segment, rows_of

_NS_PER_US = 1000.0


def execution_of(path: Path, view: Mapping[str, Any]) -> Section:
    """Returns the execution section of a report."""
    seconds, clock_hz = view["speed"]["predicted_step_seconds"], view["machine"]["clock_hz"]
    cycles = None if seconds is None or clock_hz is None else round(seconds * clock_hz)
    steps = list(_steps(view)) or None
    return Section(
        "report.execution",
        {
            "totalCycles": Section("report.execution.totalCycles", {"total": cycles}),
            "steps": steps,
            "runs": list(_runs(path, steps)) or None,
        },
    )


def _steps(view: Mapping[str, Any]) -> Iterator[Section]:
    rows = rows_by_segment(view["operations"])
    for timeline in view["timelines"]:
        if timeline["unit"] != "cycles":
            continue
        events = sorted(rows_of(timeline["columns"]), key=lambda event: event["start"])
        for number, values in enumerate(events):
            kind = timeline["kinds"][values["kind"]]
            name = timeline["labels"][values["label"]]["name"]
            path = f"report.execution.steps[{number}]"
            yield _step(path, view["machine"], name, kind, values, rows.get(name, []))


def _step(
    path: str,
    machine: Mapping[str, Any],
    name: str,
    kind: str,
    event: Mapping[str, Any],
    rows: list[Row],
) -> Section:
    """Returns an event of the timeline as a step; all replicas run it at the same time."""
    lane, start, cycles = event["lane"], event["start"], event["duration"]
    tiles = used_tiles(machine, lane)
    of_replica = max(machine["num_ipus"] or 0, lane + 1)
    ipus = [
        _ipu_step(f"{path}.ipus[{ipu}]", machine, start, cycles if ipu % of_replica == lane else 0)
        for ipu in range(of_replica * machine["num_replicas"])
    ]
    sets = [
        Section(
            f"{path}.computeSets[{number}]",
            {"name": row["name"], "cyclesByTile": _times(tiles, round(duration))},
        )
        for number, (row, _, duration) in enumerate(placed(rows, start, cycles))
    ]
    return Section(
        path,
        {
            "program": program_of(f"{path}.program", name, kind, rows, tiles),
            "ipus": ipus,
            "cyclesByTile": _times(tiles, cycles),
            "computeSets": sets,
        },
    )


def _times(tiles: ByTile | None, cycles: int) -> ByTile | None:
    return None if tiles is None else tiles.times(cycles)


def _ipu_step(path: str, machine: Mapping[str, Any], start: int, cycles: int) -> Section:
    """Returns the step of one IPU; in the model all tiles that compute do the same work."""
    num_tiles, num_used = machine["num_tiles"], machine.get("num_compute_tiles")
    share = num_used / num_tiles if num_tiles and num_used is not None else None
    is_idle = cycles == 0
    active = {
        f"cycles{name}": Section(
            f"{path}.activeCycles.cycles{name}", {"min": moment, "max": moment}
        )
        for name, moment in (("From", start), ("To", start + cycles))
    }
    return Section(
        path,
        {
            "cycles": cycles,
            "activeCycles": Section(f"{path}.activeCycles", active),
            "activeTileBalance": 0.0 if is_idle else 1.0,
            "tileBalance": 0.0 if is_idle else share,
        },
    )


def _runs(path: Path, steps: list[Section] | None) -> Iterator[Section]:
    """Yields the calls that ran; the profile of a long run omits calls in its middle."""
    calls = read_calls(path)
    for index, (number, start_ns, end_ns) in enumerate(calls):
        name = f"report.execution.runs[{index}]"
        span = {
            "start": (start_ns - calls[0][1]) / _NS_PER_US,
            "end": (end_ns - calls[0][1]) / _NS_PER_US,
        }
        microseconds = Section(f"{name}.microseconds", span)
        # Every call has the same steps, because a call repeats the one modelled window.
        values = {"name": f"call {number}", "microseconds": microseconds, "steps": steps}
        yield Section(name, values)
