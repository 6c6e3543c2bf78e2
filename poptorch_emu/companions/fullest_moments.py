"""Bytes that all IPUs of a report hold at the moment when one of them runs an operation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from poptorch_emu.report.trace_operations import UPDATE, placed, rows_by_segment, rows_of, step_name

# Start of a moment in cycles, position of the IPU, and name of the step.
Moment = tuple[float, int, str]


def fullest_moments(view: Mapping[str, Any]) -> dict[tuple[int, str], tuple[int, ...]]:
    """Returns the bytes of each IPU when a step begins, without always-live ones (modelled).

    If a step runs for several micro-batches, the moment counts at which all IPUs together hold the
    most. An IPU keeps the bytes of its last operation until its next one; before its first
    operation it holds nothing. Bytes are those of the mean tile; keys are the position of the IPU
    and the name of the step. A step that takes no time, such as a view, has the moment of the step
    before it, or of the first step that takes time. The result is empty if the report has no
    timeline.
    """
    memories = view["memory"]["ipus"]
    levels = [
        dict(zip(memory["steps"]["names"], memory["steps"]["live"], strict=True))
        if memory["steps"]
        else {}
        for memory in memories
    ]
    current, found = [0] * len(memories), dict[tuple[int, str], tuple[int, ...]]()
    for _, ipu, name in sorted(_moments(view)):
        if name in levels[ipu]:
            current[ipu] = levels[ipu][name]
            if sum(current) >= sum(found.get((ipu, name), ())):
                found[ipu, name] = tuple(current)
    for ipu, names in enumerate(levels):
        last = next((found[ipu, name] for name in names if (ipu, name) in found), ())
        for name in names if last else ():
            last = found.setdefault((ipu, name), last)
    return found


def _moments(view: Mapping[str, Any]) -> Iterator[Moment]:
    memories, segments = view["memory"]["ipus"], rows_by_segment(view["operations"])
    positions = {f"IPU {memory['ipu']}": number for number, memory in enumerate(memories)}
    for timeline in view["timelines"]:
        if timeline["unit"] != "cycles":
            continue
        for event in rows_of(timeline["columns"]):
            ipu = positions.get(timeline["lanes"][event["lane"]])
            if ipu is None:
                continue
            rows = segments.get(timeline["labels"][event["label"]]["name"], [])
            for row, begin, _ in placed(rows, event["start"], event["duration"]):
                yield begin, ipu, step_name(row)
            if not rows and timeline["kinds"][event["kind"]] == "update":
                names = (memories[ipu]["steps"] or {"names": ()})["names"]
                yield from (
                    (event["start"], ipu, name) for name in names if name.startswith(UPDATE)
                )
