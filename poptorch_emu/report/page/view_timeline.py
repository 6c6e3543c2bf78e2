"""The timelines of a report as columns: IPUs in cycles, the engine in seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.time.time_plan import Event, TimePlan
from poptorch_emu.plan.time.timeline import timeline
from poptorch_emu.report.page.page_content import EngineRun
from poptorch_emu.report.terms import WORD_OF_EVENT
from poptorch_emu.schedule.actions import Action, Kind, parse_action
from poptorch_emu.schedule.schedule import Port

KINDS = tuple(dict.fromkeys(WORD_OF_EVENT.values()))
# Tolerance for the rounding of times, as a share of a slot.
_ROUNDING = 1e-6
_TRACEPOINT = "tracepoint"
_ENGINE_KINDS = (*KINDS, _TRACEPOINT)
_COLUMNS = ("lane", "start", "duration", "kind", "label", "micro_batch", "bytes")
_NS_PER_SECOND = 1e9


class _Table:
    """Events as columns; each label is stored once."""

    def __init__(self) -> None:
        self.columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
        self.labels: dict[str, int] = {}

    def add(self, kind: str, label: str, **values: Any) -> None:
        number = self.labels.setdefault(label, len(self.labels))
        row = {"kind": _ENGINE_KINDS.index(kind), "label": number, "bytes": None, **values}
        for name in _COLUMNS:
            self.columns[name].append(row[name])


def machine_timeline(plan: TimePlan, inventory: Inventory | None) -> dict[str, Any]:
    """Returns the work of IPUs in one window, in cycles (*modelled*).

    Args:
        plan: plan of a call's time.
        inventory: inventory with the bytes from other IPUs; without it these bytes are unknown.
    """
    events = timeline(plan)
    lanes = [ipu.ipu for ipu in plan.ipus]
    received = _received_bytes(inventory)
    table = _Table()
    for event in events:
        action = parse_action(event.action)
        is_update = action.kind is Kind.UPDATE
        # Both ends are rounded, so that events that follow each other never overlap.
        begin, end = (
            round(seconds * plan.clock_hz) for seconds in (event.begin_seconds, event.end_seconds)
        )
        table.add(
            WORD_OF_EVENT[event.kind],
            _label(event, action),
            lane=lanes.index(event.ipu),
            start=begin,
            duration=end - begin,
            micro_batch=None if is_update else event.micro_batch,
            bytes=received.get((action.kind.word, action.stage)) if event.kind == "link" else None,
        )
    return {
        "key": "cycles",
        "title": "IPUs, in cycles",
        "note": f"Predicted work of {plan.system}, by the model of the machine, in one window: "
        "the micro-batches of one update in training, or of one call in inference."
        + (
            " Parts that are left out repeat the parts before them."
            if _num_left(events, plan)
            else ""
        ),
        "unit": "cycles",
        "lanes": [f"IPU {ipu}" for ipu in lanes],
        "kinds": list(KINDS),
        "labels": [_place(name, inventory) for name in table.labels],
        "columns": table.columns,
        "spans": _spans(events, plan),
        "num_left_out": 0,
    }


def _label(event: Event, action: Action) -> str:
    if action.kind is Kind.UPDATE:
        return f"update: {event.kind}"
    if event.kind in ("forward", "backward", "weights", "recompute"):
        return f"{event.kind} {action.stage}"
    return f"{event.kind} of {action.kind.word} {action.stage}"


def _num_left(events: Sequence[Event], plan: TimePlan) -> int:
    """Returns how many micro-batches in the middle of a long window are not drawn."""
    return plan.grid.num_micro_batches - len({event.micro_batch for event in events})


def _received_bytes(inventory: Inventory | None) -> Counter[tuple[str, int]]:
    """Returns the bytes that each segment receives for a micro-batch, by its word and stage."""
    received: Counter[tuple[str, int]] = Counter()
    for link in inventory.links if inventory else ():
        if inventory and inventory.ipu_of(link.producer) != inventory.ipu_of(link.consumer):
            kind, stage = link.consumer
            received[kind.word, stage] += inventory.item_bytes(link)
    return received


def _place(name: str, inventory: Inventory | None) -> dict[str, Any]:
    """Returns a label with the first source line of its segment."""
    return {"name": name, "source": _first_source(name, inventory)}


def _first_source(name: str, inventory: Inventory | None) -> str | None:
    if inventory is None:
        return None
    name = name.replace("recompute", "backward").rpartition("of ")[2]
    for segment in inventory.cut.segments.values():
        if segment.name == name:
            found = (instruction.node.meta["record"].source for instruction in segment.instructions)
            return next(filter(None, found), None)
    return None


def _spans(events: Sequence[Event], plan: TimePlan) -> list[dict[str, Any]]:
    """Returns the parts of the window in the schedule: `fill`, `main` and `flush`.

    The pipeline fills until the first micro-batch leaves it, and flushes after the last has
    entered.
    """
    work = [event for event in events if parse_action(event.action).kind is not Kind.UPDATE]
    if len(plan.ipus) < 2 or not work:
        return []
    entries = [event for event in work if _is_of((Kind.FORWARD, 0), event, plan)]
    exits = [event for event in work if _is_of(_exit(plan), event, plan)]
    slot = plan.grid.slot_cycles / plan.clock_hz
    filled, entered = min(e.begin_seconds for e in exits), max(e.end_seconds for e in entries)
    if slot:  # Parts begin with a slot, although an action may begin later in its slot.
        filled = slot * int(filled / slot + _ROUNDING)
        entered = slot * (1 + int(max(e.begin_seconds for e in entries) / slot + _ROUNDING))
    last = max(event.end_seconds for event in work)
    ends = [("fill", 0.0, min(filled, entered)), ("flush", entered, last)]
    if filled < entered:
        ends[1:1] = _main(filled, entered, work, plan)
    return [
        {
            "name": name,
            "start": round(start * plan.clock_hz),
            "end": round(end * plan.clock_hz),
        }
        for name, start, end in ends
        if start < end
    ]


def _exit(plan: TimePlan) -> Port:
    """Returns the segment that a micro-batch runs last."""
    if not plan.grid.is_training:
        return Kind.FORWARD, len(plan.stages) - 1
    table = plan.grid.table
    return (Kind.BACKWARD if table is None else table.kinds[0][-1]), 0


def _is_of(port: Port, event: Event, plan: TimePlan) -> bool:
    """Returns whether the action of an event runs a segment."""
    action, table = parse_action(event.action), plan.grid.table
    ports = [(action.kind, action.stage)] if table is None else table.ports_of(action)
    return port in ports


def _main(
    begin: float, end: float, work: Sequence[Event], plan: TimePlan
) -> list[tuple[str, float, float]]:
    """Returns the part with a full pipeline, in two pieces around a gap if it is long."""
    num_left = _num_left(work, plan)
    if num_left:
        middle = plan.grid.num_micro_batches // 2
        left = max(event.end_seconds for event in work if event.micro_batch < middle)
        right = min(event.begin_seconds for event in work if event.micro_batch >= middle)
        gap = (f"{num_left:,} micro-batches, not drawn", left, right)
        if left <= right:  # By a table, early micro-batches may end after late ones begin.
            return [("main", begin, left), gap, ("main", right, end)]
    return [("main", begin, end)]


def engine_timeline(run: EngineRun) -> dict[str, Any]:
    """Returns the engine's actions, in seconds from the first event (*exact*).

    Each channel of the user's tracepoints has a lane of its own.
    """
    first_ns = min(event.start_ns for event in run.events)
    first_ns = min([first_ns, *(start_ns for _, _, start_ns, _ in run.tracepoints)])
    lanes = sorted({(event.replica, event.ipu) for event in run.events})
    number_of = {lane: number for number, lane in enumerate(lanes)}
    is_replicated = len({replica for replica, _ in lanes}) > 1
    table = _Table()
    for event in run.events:
        label = run.segments[event.segment]
        kind = label.partition(" ")[0]
        table.add(
            kind if kind in KINDS else "update",
            label,
            lane=number_of[event.replica, event.ipu],
            start=(event.start_ns - first_ns) / _NS_PER_SECOND,
            duration=(event.end_ns - event.start_ns) / _NS_PER_SECOND,
            micro_batch=event.micro_batch,
        )
    channels = sorted({channel for channel, _, _, _ in run.tracepoints})
    for channel, name, start_ns, end_ns in run.tracepoints:
        table.add(
            _TRACEPOINT,
            name,
            lane=len(lanes) + channels.index(channel),
            start=(start_ns - first_ns) / _NS_PER_SECOND,
            duration=(end_ns - start_ns) / _NS_PER_SECOND,
            micro_batch=None,
        )
    return {
        "key": "seconds",
        "title": "Engine, in seconds",
        "note": "Times of the engine on this computer. They do not predict times of real IPUs.",
        "unit": "seconds",
        "lanes": [*_lane_names(lanes, is_replicated), *channels],
        "kinds": list(_ENGINE_KINDS if channels else KINDS),
        "labels": [{"name": name, "source": None} for name in table.labels],
        "columns": table.columns,
        "spans": [],
        "num_left_out": run.num_left_out,
    }


def _lane_names(lanes: Iterable[tuple[int, int]], is_replicated: bool) -> Iterable[str]:
    return (
        f"replica {replica}, {ipu}" if is_replicated else f"virtual {ipu}" for replica, ipu in lanes
    )
