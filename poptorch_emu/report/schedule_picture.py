"""The picture of a pipeline as textbooks draw it: a row for each IPU, a box for each action."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from poptorch_emu.report.pictures import Box, axes_or_new, draw_boxes
from poptorch_emu.schedule.actions import Action, Kind
from poptorch_emu.schedule.schedule import Schedule

# Lengths of boxes: a convention of such pictures, not times.
_LENGTHS = {"forward": 1.0, "recompute": 1.0, "backward": 2.0, "update": 1.0}
_KINDS = {Kind.FORWARD: "forward", Kind.BACKWARD: "backward", Kind.UPDATE: "update"}
# Of more slots the first and the last ones are drawn.
MOST_SLOTS = 60
_GAP = 3.0
_INCHES = 0.26


def shown_slots(num_slots: int) -> tuple[range, range]:
    """Returns the slots before what is left out of a long schedule, and those after it."""
    if num_slots <= MOST_SLOTS:
        return range(num_slots), range(0)
    half = MOST_SLOTS // 2
    return range(half), range(num_slots - half, num_slots)


def boxes_of(schedule: Schedule, recomputes: Sequence[bool]) -> tuple[list[Box], list[float]]:
    """Returns the boxes of a schedule, and where its left-out slots stand, if there are any.

    Each slot is as long as what the IPU with most work has to do in it.

    Args:
        schedule: of one window.
        recomputes: for each stage, whether its backward computes activations again; empty if none.
    """
    boxes: list[Box] = []
    gaps = []
    at = 0.0
    for slots in shown_slots(schedule.num_slots):
        if slots and slots.start:
            gaps.append(at + _GAP / 2)
            at += _GAP
        for slot in slots:
            longest = 0.0
            for ipu, row in enumerate(schedule.rows):
                begin = at
                for action in row[slot]:
                    for kind in _kinds(action, recomputes):
                        text = "" if action.kind is Kind.UPDATE else str(action.micro_batch)
                        boxes.append(Box(ipu, begin, _LENGTHS[kind], kind, text))
                        begin += _LENGTHS[kind]
                longest = max(longest, begin - at)
            at += longest
    return boxes, gaps


def _kinds(action: Action, recomputes: Sequence[bool]) -> Iterator[str]:
    if action.kind is Kind.BACKWARD and recomputes and recomputes[action.stage]:
        yield "recompute"
    yield _KINDS[action.kind]


def draw_schedule(
    schedule: Schedule, recomputes: Sequence[bool], ipu_ids: Sequence[int], axes: Any
) -> Any:
    """Draws a schedule on `axes`, new ones if that is None, and returns them."""
    boxes, gaps = boxes_of(schedule, recomputes)
    end = max((box.begin + box.length for box in boxes), default=1.0)
    width = min(max(4.0, _INCHES * end), 36.0) + 1.6
    axes = axes_or_new(axes, width, 0.9 + 0.42 * schedule.num_ipus)
    size = 8 if _INCHES * end <= 36 else 6
    draw_boxes(axes, boxes, [f"IPU {ipu}" for ipu in ipu_ids], size)
    for gap in gaps:
        for ipu in range(schedule.num_ipus):
            axes.text(gap, ipu, "…", ha="center", va="center")
    axes.set_xlim(0, end)
    axes.set_xticks([])
    axes.set_xlabel("time →  (numbers: micro-batches; lengths are not to scale)")
    return axes
