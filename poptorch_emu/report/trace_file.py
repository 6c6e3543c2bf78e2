"""A reading as a trace of events in Chrome's format, which Perfetto opens, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from poptorch_emu.plan.time.time_plan import Event, TimePlan
from poptorch_emu.plan.time.timeline import timeline
from poptorch_emu.report.page.reading import EngineRun, Reading
from poptorch_emu.schedule.actions import Kind, parse_action

# Numbers of the two processes that a viewer shows.
_MACHINE, _ENGINE = 1, 2
_US_PER_SECOND, _NS_PER_US = 1e6, 1e3
_FLOWING = {"forward": Kind.FORWARD, "backward": Kind.BACKWARD}


def to_trace(reading: Reading) -> dict[str, Any]:
    """Returns the trace: a process for the machine, one for the engine, a track for each IPU.

    Arrows lead from each stage of a micro-batch to the next one on the machine. Counters show the
    bytes of a mean tile, always live and not, over the operations of a micro-batch.
    """
    events: list[dict[str, Any]] = []
    if reading.time is not None:
        events += _process(_MACHINE, f"machine: {reading.time.system}, in modelled time")
        events += _machine_events(reading.time)
        events += _counters(reading)
    left_out = 0
    if reading.run is not None and reading.run.events:
        events += _process(_ENGINE, "engine: this computer")
        events += _engine_events(reading.run)
        left_out = reading.run.num_left_out
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {"model": reading.name, "left_out_events": left_out},
    }


def _process(number: int, name: str) -> list[dict[str, Any]]:
    return [{"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": name}}]


def _thread(process: int, number: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "thread_name", "pid": process, "tid": number, "args": {"name": name}}


def _machine_events(plan: TimePlan) -> Iterator[dict[str, Any]]:
    for ipu in plan.ipus:
        yield _thread(_MACHINE, ipu.ipu, f"IPU {ipu.ipu}")
    events = timeline(plan)
    for event in events:
        yield {
            "ph": "X",
            "name": f"{event.kind} {event.action}",
            "cat": event.kind,
            "pid": _MACHINE,
            "tid": event.ipu,
            "ts": event.begin_seconds * _US_PER_SECOND,
            "dur": (event.end_seconds - event.begin_seconds) * _US_PER_SECOND,
            "args": {"micro_batch": event.micro_batch},
        }
    yield from _arrows(events)


def _arrows(events: tuple[Event, ...]) -> Iterator[dict[str, Any]]:
    """Yields an arrow from each stage's work for a micro-batch to that of the next stage."""
    work = {
        (event.kind, parse_action(event.action).stage, event.micro_batch): event
        for event in events
        if event.kind in _FLOWING
    }
    for number, ((kind, stage, micro_batch), event) in enumerate(work.items()):
        step = 1 if kind == "forward" else -1
        target = work.get((kind, stage + step, micro_batch))
        if target is None or target.begin_seconds < event.end_seconds:
            continue
        arrow = {"name": kind, "cat": "stages", "id": number, "pid": _MACHINE}
        begin, end = event.end_seconds, target.begin_seconds
        yield {**arrow, "ph": "s", "tid": event.ipu, "ts": begin * _US_PER_SECOND}
        yield {**arrow, "ph": "f", "bp": "e", "tid": target.ipu, "ts": end * _US_PER_SECOND}


def _counters(reading: Reading) -> Iterator[dict[str, Any]]:
    """Yields what a mean tile holds at each operation, a microsecond apart: they have no times."""
    if reading.tiles is None:
        return
    for ipu, levels in reading.levels.items():
        for index, level in enumerate(levels):
            held = level.num_bytes / reading.tiles.num_compute_tiles + level.temporary_bytes
            yield {
                "ph": "C",
                "name": f"IPU {ipu}: bytes live on a tile",
                "pid": _MACHINE,
                "tid": ipu,
                "ts": float(index),
                "args": {"bytes": round(held)},
            }


def _engine_events(run: EngineRun) -> Iterator[dict[str, Any]]:
    first_ns = min(event.start_ns for event in run.events)
    num_ipus = 1 + max(event.ipu for event in run.events)
    for replica, ipu in sorted({(event.replica, event.ipu) for event in run.events}):
        name = f"replica {replica}, virtual IPU {ipu}"
        yield _thread(_ENGINE, replica * num_ipus + ipu, name)
    for event in run.events:
        yield {
            "ph": "X",
            "name": run.segments[event.segment],
            "cat": "engine",
            "pid": _ENGINE,
            "tid": event.replica * num_ipus + event.ipu,
            "ts": (event.start_ns - first_ns) / _NS_PER_US,
            "dur": (event.end_ns - event.start_ns) / _NS_PER_US,
            "args": {
                "window": event.window,
                "micro_batch": event.micro_batch,
                "worker": event.worker,
            },
        }
