"""Transfers of inputs and outputs between host and IPU that overlap with the compute.

The input of a micro-batch arrives while the micro-batch before it is computed. Its output leaves
while the next one is computed. Depending on the mode, transfers stop at the ends of a window or
overlap with the neighbouring windows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from poptorch_emu.enums import OverlapMode
from poptorch_emu.printed.records import Record
from poptorch_emu.schedule.actions import Action, Kind
from poptorch_emu.schedule.schedule import Schedule


@dataclass(frozen=True)
class Transfer(Record):
    """An input or output that crosses once for each micro-batch, beside the compute.

    Attributes:
        number: number of the input or output.
        is_input: whether the transfer comes from the host.
        stage: stage whose forward reads the input first, or computes the output.
        mode: loop that the transfer overlaps with. In inference the accumulation loop has one
            iteration, so no transfer overlaps with it.
    """

    number: int
    is_input: bool
    stage: int
    mode: OverlapMode

    def text(self, micro_batch: int, num_micro_batches: int) -> str:
        """Returns `0I1` for input 0 of micro-batch 1, `0O1` for an output.

        A `+` marks the next window and a `-` the window before.
        """
        letter, mark = ("I", "+") if self.is_input else ("O", "-")
        is_here = 0 <= micro_batch < num_micro_batches
        return f"{self.number}{letter}{micro_batch % num_micro_batches}{'' if is_here else mark}"


def transfer_row(schedule: Schedule, ipu: int, transfers: Iterable[Transfer]) -> list[str] | None:
    """Returns the text of an IPU's transfers in each slot; `None` if it has no transfers.

    A transfer begins together with the forward that it overlaps with.
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
    """Returns whether the tensor of micro-batch `crossing` overlaps with another micro-batch."""
    if transfer.mode is OverlapMode.OverlapDeviceIterationLoop:
        return True
    return schedule.is_training and 0 <= crossing < schedule.num_micro_batches
