"""Blocks, operations and counters of memory in a trace, below the segments of the machine.

An operation has the name and the category that `torch.profiler` gives it, for example "aten::addmm"
and "cpu_op", so that programs for the profiler's traces find it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

# Largest number of operations in a trace; segments beyond it are written without operations.
MOST_OPERATIONS = 50_000
_NS_PER_US = 1e3
UPDATE = "the update of "
_ARGUMENTS = ("module", "block", "bytes", "cycles", "source")

Row = dict[str, Any]


def operation_events(
    report: Mapping[str, Any], lanes: Iterable[str], slices: Iterable[Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], int]:
    """Returns the blocks, operations and counters of a timeline, and how many operations it omits.

    The operations of a segment fill it in their order, in proportion to their cycles. Neighbours
    of one block lie within a slice with the name of the block. A counter keeps its value until the
    next operation of its IPU.

    Args:
        report: value of `view_model.view_model`.
        lanes: lanes of the machine's timeline.
        slices: events of the same timeline in the trace.
    """
    segments = rows_by_segment(report["operations"])
    counters = [_Counter(lane, text, report) for lane, text in enumerate(lanes)]
    events: list[dict[str, Any]] = []
    num_written = num_left = 0
    for segment in sorted(slices, key=lambda one: one["ts"]):
        rows = segments.get(segment["name"], [])
        operations = list(placed(rows, segment["ts"], segment["dur"]))
        events += _blocks(operations, segment)  # A slice precedes those within it.
        if num_written + len(rows) > MOST_OPERATIONS:
            num_left += len(rows)
            continue
        num_written += len(rows)
        counter = counters[segment["tid"]]
        if not rows:
            events += counter.of_update(segment)
        for row, begin, duration in operations:
            known = {name: row[name] for name in _ARGUMENTS if row[name] is not None}
            arguments = {**known, "node": row["name"]}
            events.append(_slice(row["operator"], "cpu_op", segment, begin, duration, arguments))
            events += counter.of_operation(row, segment["pid"], begin)
    return events, num_left


def _blocks(
    operations: Iterable[tuple[Row, float, float]], segment: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yields a slice for each run of operations of one block."""
    for block, run in groupby(operations, key=lambda one: one[0]["block"]):
        members = list(run)
        first, (_, begin, duration) = members[0][1], members[-1]
        if block is not None:
            yield _slice(block, "block", segment, first, begin + duration - first, {})


def _slice(
    name: str,
    category: str,
    segment: Mapping[str, Any],
    begin: float,
    duration: float,
    arguments: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns a slice on the track of a segment; times are in microseconds."""
    track = {"pid": segment["pid"], "tid": segment["tid"]}
    times = span(begin, duration)
    return {"ph": "X", "name": name, "cat": category, **track, **times, "args": dict(arguments)}


def rows_of(columns: Mapping[str, list[Any]]) -> Iterator[Row]:
    """Yields the rows of a table that is stored as columns."""
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def rows_by_segment(columns: Mapping[str, list[Any]]) -> dict[str, list[Row]]:
    """Returns the operations with known cycles, by the event that contains them."""
    found: dict[str, list[Row]] = {}
    for row in rows_of(columns):
        if row["cycles"] and row["segment"]:
            # The recomputed part of a backward segment is an event of its own.
            is_again = row["is_recomputed"]
            event = row["segment"].replace("backward", "recompute") if is_again else row["segment"]
            found.setdefault(event, []).append(row)
    return found


def placed(rows: list[Row], begin: float, duration: float) -> Iterator[tuple[Row, float, float]]:
    """Yields (operation, begin, duration) within a segment; no operation ends after it."""
    total, done = sum(row["cycles"] for row in rows), 0
    for row in rows:
        start = begin + duration * done / total
        done += row["cycles"]
        end = min(begin + duration * done / total, begin + duration)
        yield row, start, max(0.0, end - start)


def step_name(row: Row) -> str:
    """Returns the name of an operation's step in the plan of memory."""
    place = f"{row['name']}, in {row['segment']}"
    return f"{place} ({row['source']})" if row["source"] else place


def span(begin: float, duration: float) -> dict[str, float]:
    """Returns begin and duration of a slice in microseconds, rounded to whole nanoseconds.

    Perfetto counts nanoseconds and drops a slice that overlaps its neighbour or exceeds its parent.
    So begin and end are rounded, instead of the duration.
    """
    first, last = round(begin * _NS_PER_US), round((begin + duration) * _NS_PER_US)
    return {"ts": _microseconds(first), "dur": _microseconds(last - first)}


def _microseconds(nanoseconds: int) -> float:
    """Returns microseconds that give `nanoseconds` again when cut to whole nanoseconds."""
    found = nanoseconds / _NS_PER_US
    return found if found * _NS_PER_US >= nanoseconds else math.nextafter(found, math.inf)


class _Counter:
    """The memory of the mean tile of an IPU as a counter; empty if the report lacks it."""

    def __init__(self, lane: int, text: str, report: Mapping[str, Any]) -> None:
        ipus = report["memory"]["ipus"]
        memory = next((ipu for ipu in ipus if f"IPU {ipu['ipu']}" == text), None)
        steps = (memory or {}).get("steps") or {"names": [], "always": [], "live": []}
        levels = zip(steps["names"], steps["always"], steps["live"], strict=True)
        self._levels = {name: {"always live": a, "not always live": b} for name, a, b in levels}
        self._name, self._lane = f"memory of {text}: bytes of the mean tile", lane
        self._last: dict[str, int] | None = None

    def of_operation(self, row: Row, process: int, begin: float) -> Iterator[dict[str, Any]]:
        """Yields the counter at an operation if its value has changed."""
        return self._changed(self._levels.get(step_name(row)), process, begin)

    def of_update(self, segment: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields the counter at an update if its value has changed."""
        is_update = segment["cat"] == "update"
        names = (name for name in self._levels if is_update and name.startswith(UPDATE))
        return self._changed(self._levels.get(next(names, "")), segment["pid"], segment["ts"])

    def _changed(
        self, level: dict[str, int] | None, process: int, begin: float
    ) -> Iterator[dict[str, Any]]:
        if level is not None and level != self._last:
            self._last = level
            counter = {"ph": "C", "name": self._name, "cat": "memory", "pid": process}
            yield {**counter, "tid": self._lane, "ts": span(begin, 0)["ts"], "args": level}
