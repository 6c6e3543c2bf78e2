"""The picture of a pipeline as in textbooks: a row for each IPU, a box for each action."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from poptorch_emu.report.pictures import Box, axes_or_new, draw_boxes
from poptorch_emu.report.schedule_grid import slot_parts
from poptorch_emu.schedule.actions import Action, Kind
from poptorch_emu.schedule.free_run import FreeRun
from poptorch_emu.schedule.schedule import Schedule

# Lengths of boxes, by the convention of such pictures; they are not times.
_LENGTHS = {"forward": 1.0, "recompute": 1.0, "backward": 2.0, "weights": 1.0, "update": 1.0}
# A longer schedule is drawn with its first and last slots only.
MOST_SLOTS = 60
_GAP = 3.0
_INCHES = 0.26
# If there are more steps, only each fifth has its number.
_MOST_NUMBERED = 40


def shown_slots(num_slots: int) -> tuple[range, range]:
    """Returns the slots before and after the gap in a long schedule."""
    if num_slots <= MOST_SLOTS:
        return range(num_slots), range(0)
    half = MOST_SLOTS // 2
    return range(half), range(num_slots - half, num_slots)


def boxes_of(schedule: Schedule, recomputes: Sequence[bool]) -> tuple[list[Box], list[float]]:
    """Returns the boxes of a schedule, and the positions of left-out slots.

    Each slot is as long as the work of its busiest IPU.

    Args:
        schedule: schedule of one window.
        recomputes: for each stage, whether its backward recomputes activations; empty if none does.
    """
    boxes: list[Box] = []
    gaps = []
    at = 0.0
    shades = shades_of(schedule)
    for slots in shown_slots(schedule.num_slots):
        if slots and slots.start:
            gaps.append(at + _GAP / 2)
            at += _GAP
        for slot in slots:
            for ipu, row in enumerate(schedule.rows):
                begin = at
                for action in row[slot]:
                    for kind, length in _parts(action, recomputes):
                        boxes.append(_box(ipu, begin, length, kind, action, shades))
                        begin += length
            at += _slot_length(schedule, slot, recomputes)
    return boxes, gaps


def part_spans(schedule: Schedule, recomputes: Sequence[bool]) -> list[tuple[str, float, float]]:
    """Returns (name, begin, end) of each part of the window in the picture of `boxes_of`."""
    parts = slot_parts(schedule)
    spans: list[tuple[str, float, float]] = []
    for slot, begin, end in slot_spans(schedule, recomputes):
        if spans and spans[-1][0] == parts[slot]:
            begin = spans.pop()[1]
        spans.append((parts[slot], begin, end))
    return spans


def slot_spans(
    schedule: Schedule, recomputes: Sequence[bool]
) -> Iterator[tuple[int, float, float]]:
    """Yields (number, begin, end) of each slot in the picture of `boxes_of`."""
    at = 0.0
    for slots in shown_slots(schedule.num_slots):
        if slots and slots.start:
            at += _GAP
        for slot in slots:
            begin, at = at, at + _slot_length(schedule, slot, recomputes)
            yield slot, begin, at


def _slot_length(schedule: Schedule, slot: int, recomputes: Sequence[bool]) -> float:
    """Returns the length of a slot: the work of its busiest IPU."""
    works = (
        sum(length for action in row[slot] for _, length in _parts(action, recomputes))
        for row in schedule.rows
    )
    return max(works, default=0.0)


def boxes_of_run(schedule: Schedule, run: FreeRun) -> tuple[list[Box], list[float]]:
    """Returns the boxes of a table that lets IPUs wait for the inputs of their actions only.

    In a long table only the boxes at both ends are kept, with a gap between them.

    Args:
        schedule: schedule of one window.
        run: begin and end of its actions, in units of such pictures.
    """
    shades, boxes = shades_of(schedule), []
    for action, begin in run.begins.items():
        ipu = schedule.ipu_of_stage[action.stage]
        for kind, length in _parts(action, ()):
            boxes.append(_box(ipu, begin, length, kind, action, shades))
            begin += length
    if schedule.is_training:
        boxes += [Box(ipu, run.end, 1.0, "update") for ipu in range(schedule.num_ipus)]
    left_out = run.end - 2 * MOST_SLOTS
    if left_out <= _GAP:
        return boxes, []
    first = [box for box in boxes if box.begin + box.length <= MOST_SLOTS]
    shift = left_out - _GAP
    last = [box for box in boxes if box.begin >= run.end - MOST_SLOTS]
    moved = [replace(box, begin=box.begin - shift) for box in last]
    return [*first, *moved], [MOST_SLOTS + _GAP / 2]


def shades_of(schedule: Schedule) -> tuple[int, ...]:
    """Returns, for each stage, the number of earlier stages on its IPU."""
    seen: Counter[int] = Counter()
    shades = []
    for ipu in schedule.ipu_of_stage:
        shades.append(seen[ipu])
        seen[ipu] += 1
    return tuple(shades)


def _box(
    ipu: int, begin: float, length: float, kind: str, action: Action, shades: Sequence[int]
) -> Box:
    if action.kind is Kind.UPDATE:
        return Box(ipu, begin, length, kind)
    return Box(ipu, begin, length, kind, str(action.micro_batch), shades[action.stage])


def _parts(action: Action, recomputes: Sequence[bool]) -> Iterator[tuple[str, float]]:
    """Yields (kind, length) for each box of an action."""
    is_backward = action.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUTS)
    if is_backward and recomputes and recomputes[action.stage]:
        yield "recompute", _LENGTHS["recompute"]
    is_half = action.kind is Kind.BACKWARD_INPUTS
    yield action.kind.word, _LENGTHS[action.kind.word] / (2 if is_half else 1)


def draw_schedule(
    schedule: Schedule,
    recomputes: Sequence[bool],
    ipu_ids: Sequence[int],
    axes: Any,
    run: FreeRun | None = None,
) -> Any:
    """Draws a schedule and returns the axes.

    Args:
        schedule: schedule of one window.
        recomputes: for each stage, whether its backward recomputes activations; empty if none does.
        ipu_ids: the user's numbers of the IPUs.
        axes: matplotlib axes to draw on; None for new ones.
        run: begin and end of a table's actions, which replace the slots; None for other schedules.
    """
    found = boxes_of(schedule, recomputes) if run is None else boxes_of_run(schedule, run)
    boxes, gaps = found
    end = max((box.begin + box.length for box in boxes), default=1.0)
    width = min(max(4.0, _INCHES * end), 36.0) + 1.6
    axes = axes_or_new(axes, width, 0.9 + 0.42 * schedule.num_ipus)
    size = 8 if _INCHES * end <= 36 else 6
    draw_boxes(axes, boxes, [f"IPU {ipu}" for ipu in ipu_ids], size)
    for gap in gaps:
        for ipu in range(schedule.num_ipus):
            axes.text(gap, ipu, "…", ha="center", va="center")
    if run is None:
        _name_parts(axes, part_spans(schedule, recomputes))
        slots = slot_spans(schedule, recomputes)
        spans = [(slot + 1, begin, stop) for slot, begin, stop in slots]
        marks = "steps, counted from 1"
    else:
        spans = [] if gaps else [(at + 1, at, at + 1) for at in range(ceil(end))]
        marks = "units of time, counted from 1"
    _mark(axes, spans)
    axes.set_xlim(0, end)
    axes.set_xlabel(
        f"{marks if spans else 'time →'}  (in boxes: micro-batches; lengths are not to scale)"
    )
    return axes


def _mark(axes: Any, spans: Sequence[tuple[int, float, float]]) -> None:
    """Marks where each step begins, and numbers the steps; of many, each fifth has a number."""
    every = 1 if len(spans) <= _MOST_NUMBERED else 5
    numbered = [span for span in spans if span[0] == 1 or span[0] % every == 0]
    axes.set_xticks([begin for _, begin, _ in spans])
    axes.set_xticklabels([])
    axes.set_xticks([(begin + end) / 2 for _, begin, end in numbered], minor=True)
    axes.set_xticklabels([str(number) for number, _, _ in numbered], minor=True, fontsize=7)
    axes.tick_params(axis="x", which="minor", length=0)
    axes.grid(axis="x", which="major", linewidth=0.4)
    axes.set_axisbelow(True)


def _name_parts(axes: Any, spans: Sequence[tuple[str, float, float]]) -> None:
    """Writes the parts of a window above the picture, with a line between two parts."""
    for name, begin, end in spans:
        if begin:
            axes.axvline(begin, color="k", linestyle=":", linewidth=1)
        axes.annotate(
            name, ((begin + end) / 2, 1), xycoords=("data", "axes fraction"),
            xytext=(0, 2), textcoords="offset points", ha="center", va="bottom", fontsize=8,
        )  # fmt: skip
