"""A moving average of a weight, which the device updates once for each weight update."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.ir.average import MOVING_AVERAGE
from poptorch_emu.ops.named.named_operator import Attributes
from poptorch_emu.trace.recording import regions


def moving_average(inputs: Sequence[torch.Tensor], given: Attributes) -> torch.Tensor:
    """Sets the average to factor * average + (1 - factor) * weight at each update.

    The weight is its value before the update. Micro-batches read the average before it changes.
    Callers discard the result.

    Raises:
        Error: the model is for inference, which has no updates, or the call is in a loop or branch.
        ValueError: the shapes of the arguments are wrong.
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
