"""Inputs and outputs that cross between host and IPU while micro-batches are computed.

The input of a micro-batch comes while the one before is computed, and an output goes while the next
one is. Within a window both stop at its ends; across windows they do not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from poptorch_emu.enums import OverlapMode
from poptorch_emu.schedule.actions import Action, Kind
from poptorch_emu.schedule.schedule import Schedule


@dataclass(frozen=True)
class Transfer:
    """An input or output that crosses once for each micro-batch, beside the compute.

    Attributes:
        number: of the input or output.
        is_input: whether it comes from the host.
        stage: whose forward reads it first, or gives it.
        mode: with which loop it overlaps. In inference the accumulation loop has one iteration,
            with nothing before or after it.
    """

    number: int
    is_input: bool
    stage: int
    mode: OverlapMode

    def text(self, micro_batch: int, num_micro_batches: int) -> str:
        """Returns `0I1` for input 0 of micro-batch 1, `0O1` for an output.

        With a `+` it is the next window's, with a `-` the one's before.
        """
        letter, mark = ("I", "+") if self.is_input else ("O", "-")
        is_here = 0 <= micro_batch < num_micro_batches
        return f"{self.number}{letter}{micro_batch % num_micro_batches}{'' if is_here else mark}"


def transfer_row(schedule: Schedule, ipu: int, transfers: Iterable[Transfer]) -> list[str] | None:
    """Returns for each slot what crosses to and from an IPU meanwhile; `None` if nothing does.

    A transfer begins with the forward of the stage for the micro-batch that is computed meanwhile.
    """
    found: defaultdict[int, list[str]] = defaultdict(list)
    count = schedule.num_micro_batches
    for transfer in transfers:
        if schedule.ipu_of_stage[transfer.stage] != ipu:
            continue
        for computed in range(count):
            crossing = computed + (1 if transfer.is_input else -1)
            if _overlaps(schedule, transfer, crossing):
                slot = schedule.slot_of[Action(Kind.FORWARD, transfer.stage, computed)]
                found[slot].append(transfer.text(crossing, count))
    if not found:
        return None
    return ["|".join(found[slot]) for slot in range(schedule.num_slots)]


def _overlaps(schedule: Schedule, transfer: Transfer, crossing: int) -> bool:
    """Returns whether the tensor of a micro-batch crosses during another; it may be a window's."""
    if transfer.mode is OverlapMode.OverlapDeviceIterationLoop:
        return True
    return schedule.is_training and 0 <= crossing < schedule.num_micro_batches
