"""The timelines of a report in Chrome's trace format, which Perfetto reads, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from poptorch_emu.report.trace_operations import operation_events, rows_of, span

_US_PER_SECOND = 1e6
_MACHINE, _ENGINE = 1, 2
_PROCESSES = {"cycles": (_MACHINE, "machine (modelled)"), "seconds": (_ENGINE, "engine (exact)")}
# For each direction, the label of an arrow between stages, and the offset of its target stage.
_ARROWS = {"forward": ("activations", 1), "backward": ("gradients", -1)}


def to_trace(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a trace whose processes are machine and engine, and whose tracks are IPUs.

    Below the segments of the machine are their blocks and operations, the latter with the names of
    `torch.profiler`, and a counter of memory for each IPU. Arrows lead from each stage of a
    micro-batch to the next one, forward and backward. Times are in microseconds; those of the
    machine follow from cycles and clock.

    Args:
        report: value of `view_model.view_model`.
    """
    events: list[dict[str, Any]] = []
    left_out = {}
    for timeline in report["timelines"]:
        process, name = _PROCESSES[timeline["key"]]
        clock_hz = report["machine"]["clock_hz"] if timeline["unit"] == "cycles" else 1.0
        events += _names(process, name, timeline["lanes"])
        slices = list(_slices(timeline, process, _US_PER_SECOND / clock_hz))
        events += slices
        events += _arrows(slices)
        left_out[name] = timeline["num_left_out"]
        if process == _MACHINE:
            details, num_left = operation_events(report, timeline["lanes"], slices)
            events += details
            left_out[f"operations of the {name}"] = num_left
    return {
        "schemaVersion": 1,
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {"model": report["name"], "dropped_events": left_out},
    }


def _names(process: int, name: str, lanes: list[str]) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
    for lane, text in enumerate(lanes):
        yield {
            "ph": "M",
            "name": "thread_name",
            "pid": process,
            "tid": lane,
            "args": {"name": text},
        }


def _slices(
    timeline: Mapping[str, Any], process: int, microseconds: float
) -> Iterator[dict[str, Any]]:
    for event in rows_of(timeline["columns"]):
        label = timeline["labels"][event["label"]]
        known = {
            "micro_batch": event["micro_batch"],
            "bytes": event["bytes"],
            "source": label["source"],
        }
        yield {
            "ph": "X",
            "name": label["name"],
            "cat": timeline["kinds"][event["kind"]],
            "pid": process,
            "tid": event["lane"],
            **span(event["start"] * microseconds, event["duration"] * microseconds),
            "args": {name: value for name, value in known.items() if value is not None},
        }


def _arrows(slices: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields both ends of each arrow; the k-th begin leads to the k-th end."""
    found: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for event in sorted(slices, key=lambda one: one["ts"]):
        kind, _, stage = event["name"].partition(" ")
        if event["cat"] == kind and kind in _ARROWS and stage.isdecimal():
            key = (kind, int(stage), event["args"].get("micro_batch", 0))
            found.setdefault(key, []).append(event)
    for (kind, stage, micro_batch), begins in found.items():
        text, step = _ARROWS[kind]
        ends = found.get((kind, stage + step, micro_batch), ())
        for turn, (one, other) in enumerate(zip(begins, ends, strict=False)):
            name = f"{one['pid']}:{kind}:{stage}:{micro_batch}:{turn}"
            arrow = {"name": text, "cat": "flow", "id": name, "pid": one["pid"]}
            yield {**arrow, "ph": "s", "tid": one["tid"], "ts": one["ts"]}
            yield {**arrow, "ph": "f", "bp": "e", "tid": other["tid"], "ts": other["ts"]}
