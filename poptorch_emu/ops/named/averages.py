"""A moving average of a weight, which the device changes once an update."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.ir.average import MOVING_AVERAGE
from poptorch_emu.ops.named.named_operator import Attributes
from poptorch_emu.trace import regions


def moving_average(inputs: Sequence[torch.Tensor], given: Attributes) -> torch.Tensor:
    """Has the average become factor * average + (1 - factor) * weight, at each update.

    The weight is that before the update, and micro-batches read the average before it. The result
    is there to be thrown away.

    Raises:
        Error: in inference, which has no updates, and inside a loop or a branch.
        ValueError: the shapes do not fit.
    """
    weight, average, factor = inputs
    state = regions.current()
    if not state.is_training or state.recorder.is_in_region:
        where = "inside a loop or a branch" if state.is_training else "in inference"
        raise compiler_error(
            f"Custom operator com.acme:ExpMovAvg is {where}, but it changes an average once an "
            "update of the weights. Call it in forward of a training model, outside of them."
        )
    if weight.shape != average.shape or factor.numel() != 1:
        raise ValueError(
            f"the updater has shape {list(weight.shape)}, the accumulator {list(average.shape)} "
            f"and the factor {list(factor.shape)}; expected two equal ones and a single number"
        )
    with torch.no_grad():
        result: torch.Tensor = MOVING_AVERAGE(weight, average, factor)
    return result
