"""Nms: selects boxes by score and suppresses boxes of the same class that overlap it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from poptorch_emu.ops.named.named_operator import Attributes
from poptorch_emu.trace.operators import control_flow

# Score of a box that no longer counts, and class of a place without a detection.
_TAKEN = torch.finfo(torch.float32).min
_NO_CLASS = 2**31 - 1


def suppressed(inputs: Sequence[torch.Tensor], given: Attributes) -> list[torch.Tensor]:
    """Returns positions, scores, boxes, classes and the number of the detections.

    Each step records the box with the largest remaining score and removes that score. Scores of
    the same class are removed or lowered for boxes that overlap it. Each element of a batch stops
    when no score is above the threshold.

    Raises:
        ValueError: a shape is wrong, or `numDetections` exceeds the number of boxes.
    """
    scores, boxes = (value.detach() for value in inputs)
    if scores.dim() != 3 or boxes.shape != (*scores.shape[:2], 4):
        raise ValueError(
            f"scores have shape {list(scores.shape)} and boxes {list(boxes.shape)}; expected "
            "(batch, boxes, classes) and (batch, boxes, 4)"
        )
    (rows, num_boxes, _), most = scores.shape, given["numDetections"]
    if not 1 <= most <= num_boxes:
        raise ValueError(
            f"the attribute 'numDetections' is {most}; expected 1 to the number of boxes, "
            f"{num_boxes}"
        )
    places = torch.arange(most).to(scores.device)

    def detect(*state: torch.Tensor) -> list[torch.Tensor]:
        return _detect(boxes.float(), places, given, *state)

    empty = torch.zeros(rows, most, device=scores.device)
    start = [
        scores.float().clone(),
        empty.int() - 1,
        empty.clone(),
        torch.zeros(rows, most, 4, device=scores.device),
        torch.full_like(empty, _NO_CLASS, dtype=torch.int32),
        torch.zeros(rows, dtype=torch.int32, device=scores.device),
    ]
    with torch.no_grad():
        _, indices, values, chosen, classes, lengths = control_flow.for_loop(most, detect, start)
    return [indices, values.to(scores.dtype), chosen.to(boxes.dtype), classes, lengths]


def _detect(
    boxes: torch.Tensor,
    places: torch.Tensor,
    given: Attributes,
    remaining: torch.Tensor,
    indices: torch.Tensor,
    values: torch.Tensor,
    chosen: torch.Tensor,
    classes: torch.Tensor,
    lengths: torch.Tensor,
) -> list[torch.Tensor]:
    """Records one more box for each element of the batch that has a score above the threshold."""
    rows, num_boxes, num_classes = remaining.shape
    best, position = remaining.flatten(1).max(1)
    box, label = position // num_classes, position % num_classes
    is_found = best > given["scoreThreshold"]
    corners = boxes.gather(1, box.reshape(rows, 1, 1).expand(rows, 1, 4))
    is_here = (places == lengths.reshape(rows, 1)) & is_found.reshape(rows, 1)
    common = _overlaps(corners, boxes)
    is_of_class = torch.arange(num_classes).to(label.device) == label.reshape(rows, 1)
    concerns = is_of_class.reshape(rows, 1, num_classes) & is_found.reshape(rows, 1, 1)
    if given["sigma"]:
        lowered = remaining * (-common.square() / given["sigma"]).exp()
        lowered = torch.where(remaining == _TAKEN, remaining, lowered)
    else:
        lowered = remaining.masked_fill(common > given["threshold"], _TAKEN)
    remaining = torch.where(concerns, lowered, remaining)
    is_itself = torch.arange(num_boxes).to(box.device) == box.reshape(rows, 1)
    remaining = remaining.masked_fill(is_itself.reshape(rows, num_boxes, 1) & concerns, _TAKEN)
    return [
        remaining,
        torch.where(is_here, box.int().reshape(rows, 1), indices),
        torch.where(is_here, best.reshape(rows, 1), values),
        torch.where(is_here.unsqueeze(2), corners, chosen),
        torch.where(is_here, label.int().reshape(rows, 1), classes),
        lengths + is_found.int(),
    ]


def _overlaps(corners: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """Returns the intersection over union of a box and each box, in shape (rows, boxes, 1)."""
    first = torch.maximum(corners[..., :2], boxes[..., :2])
    last = torch.minimum(corners[..., 2:], boxes[..., 2:])
    common = (last - first).clamp(min=0).prod(2, keepdim=True)
    area = _area(corners) + _area(boxes) - common
    # Boxes without an area overlap nothing; dividing their areas would give NaN.
    return torch.where(common > 0, common / area, torch.zeros_like(common))


def _area(boxes: torch.Tensor) -> torch.Tensor:
    return (boxes[..., 2:] - boxes[..., :2]).prod(2, keepdim=True)
