"""Checks a trace against the rules of the Trace Event Format, independently of its writer.

Source: "Trace Event Format", the document of Chrome's tracing, for fields and phases; Perfetto's
documentation of its JSON importer for times, which it cuts to whole nanoseconds, and for slices,
which it drops if they overlap a neighbour or exceed the slice around them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

Event = Mapping[str, Any]
Track = tuple[int, int]


def check_trace(trace: Mapping[str, Any]) -> None:
    """Checks fields, names of processes and threads, slices, counters and flows of a trace."""
    events = trace["traceEvents"]
    assert isinstance(events, list) and trace["displayTimeUnit"] in ("ms", "ns")
    by_phase: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        assert isinstance(event["name"], str) and event["name"]
        by_phase[event["ph"]].append(event)
    assert set(by_phase) <= set("MXCsf")
    timed = [event for phase in "XCsf" for event in by_phase[phase]]
    for event in timed:
        assert event["cat"] and event["ts"] >= 0
    _check_names(by_phase["M"], timed)
    _check_counters(by_phase["C"])
    slices = _slices(by_phase["X"])
    _check_nesting(slices)
    _check_flows(by_phase["s"], by_phase["f"], slices)


def _track(event: Event) -> Track:
    assert type(event["pid"]) is int and type(event["tid"]) is int
    return event["pid"], event["tid"]


def _nanoseconds(microseconds: float) -> int:
    whole = int(microseconds * 1e3)
    assert whole == round(microseconds * 1e3), "a reader may cut or round"
    return whole


def _check_names(named: Sequence[Event], timed: Sequence[Event]) -> None:
    """Checks that each process and each thread with events has one name."""
    assert {event["name"] for event in named} <= {"process_name", "thread_name"}
    assert all(event["args"]["name"] for event in named)
    processes = Counter(event["pid"] for event in named if event["name"] == "process_name")
    threads = Counter(_track(event) for event in named if event["name"] == "thread_name")
    assert set(processes.values()) <= {1} and set(threads.values()) <= {1}
    assert {event["pid"] for event in timed} <= set(processes)
    assert {_track(event) for event in timed} <= set(threads)
    assert {process for process, _ in threads} <= set(processes)


def _check_counters(counters: Sequence[Event]) -> None:
    """Checks that the series of a counter are numbers, and that its times never go back."""
    last: dict[tuple[int, str], float] = {}
    for event in counters:
        assert event["args"] and all(value >= 0 for value in event["args"].values())
        key = event["pid"], event["name"]
        assert last.get(key, 0.0) <= event["ts"]
        last[key] = event["ts"]


def _slices(events: Sequence[Event]) -> dict[Track, list[tuple[int, int, str]]]:
    """Returns (begin, end, category) of the slices of each track in the order of their times.

    Of slices that begin together, the order of the file decides which one is around the other.
    """
    found: defaultdict[Track, list[tuple[int, int, str]]] = defaultdict(list)
    for event in events:
        assert event["dur"] >= 0 and isinstance(event["args"], dict)
        begin = _nanoseconds(event["ts"])
        found[_track(event)].append((begin, begin + _nanoseconds(event["dur"]), event["cat"]))
    return {track: sorted(spans, key=lambda span: span[0]) for track, spans in found.items()}


def _check_nesting(slices: Mapping[Track, Sequence[tuple[int, int, str]]]) -> None:
    """Checks that slices of a track lie beside or within each other: segment, block, operation."""
    depths = {"block": 1, "cpu_op": 2}
    for spans in slices.values():
        around: list[int] = []
        for begin, end, category in spans:
            while around and around[-1] <= begin:
                around.pop()
            assert not around or end <= around[-1], (begin, end, category)
            assert end == begin or len(around) <= depths.get(category, 0)
            around.append(end)


def _check_flows(
    begins: Sequence[Event],
    ends: Sequence[Event],
    slices: Mapping[Track, Sequence[tuple[int, int, str]]],
) -> None:
    """Checks that each flow has two ends in order, and that both are bound to a slice."""
    pairs: defaultdict[tuple[str, str, str], list[Event]] = defaultdict(list)
    for event in (*begins, *ends):
        pairs[event["cat"], event["name"], event["id"]].append(event)
    for key, pair in pairs.items():
        assert [event["ph"] for event in pair] == ["s", "f"], key
        # Without this mark, an end is bound to the slice that follows it.
        assert pair[1]["bp"] == "e" and pair[0]["ts"] <= pair[1]["ts"]
        for event in pair:
            at = _nanoseconds(event["ts"])
            spans = slices[_track(event)]
            assert any(begin <= at <= end for begin, end, _ in spans), event
