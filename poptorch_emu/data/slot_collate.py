"""Builds batches directly in the slots of a ring, which saves the copy after `default_collate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

import torch
from torch.utils.data import default_collate

from poptorch_emu import _C

NextSlot = Callable[[], Sequence[torch.Tensor] | None]


class SlotCollate:
    """A replacement of `default_collate` that returns the same values.

    The caller must publish or drop each batch before it builds the next one, because both may use
    the same slot.

    Attributes:
        made: last batch, if all of it is in the slot.
    """

    def __init__(self, next_slot: NextSlot) -> None:
        """Stores `next_slot`, which returns the tensors of the next slot, `None` without room."""
        self.made: Any = None
        self._next_slot = next_slot

    def __call__(self, samples: list[Any]) -> Any:
        """Returns the batch. Some of its tensors may be those of the slot."""
        self.made = None
        slot = self._next_slot()
        if slot is None:
            return default_collate(samples)
        first = samples[0]
        if type(first) is torch.Tensor:
            batch = _stacked(samples, slot[0])
            if batch is slot[0] and len(slot) == 1:
                self.made = batch
            return batch
        if type(first) is tuple and all(len(sample) == len(slot) for sample in samples):
            batch = list(map(_stacked, zip(*samples, strict=True), slot))
            if all(map(is_, batch, slot)):
                self.made = batch
            return batch
        return default_collate(samples)


def _stacked(column: Sequence[Any], place: torch.Tensor) -> Any:
    """Returns `place` with the stacked values if it suits them, otherwise a new tensor."""
    return place if _C.stack_into(column, place) else default_collate(column)  # type: ignore[arg-type]
