"""Timed events of a trace, each with the events inside its time as children."""

from __future__ import annotations

from dataclasses import dataclass, field

_NS_PER_US = 1000.0


@dataclass
class Event:
    """A named stretch of time on a thread of a trace (exact).

    Attributes:
        start: start time in microseconds, counted from the first event of the trace.
        duration: length in microseconds.
        children: the events inside this one, sorted by their start times.
    """

    label: str
    start: float
    duration: float
    children: list[Event] = field(default_factory=list)


def nested(spans: list[tuple[str, int, int]], first_ns: int) -> list[Event]:
    """Returns the outermost events; events inside another one become its children."""
    outermost: list[Event] = []
    open_events: list[tuple[int, Event]] = []
    for name, start_ns, end_ns in sorted(spans, key=lambda span: (span[1], -span[2])):
        event = Event(name, (start_ns - first_ns) / _NS_PER_US, (end_ns - start_ns) / _NS_PER_US)
        while open_events and open_events[-1][0] < end_ns:
            open_events.pop()
        (open_events[-1][1].children if open_events else outermost).append(event)
        open_events.append((end_ns, event))
    return outermost
