"""Counts the batches of batch normalisations on the host, as PyTorch's checkpoints do.

On the device `num_batches_tracked` is a constant, as every buffer of integers is. Where there is a
momentum nothing but the count of a checkpoint depends on it.
"""

from __future__ import annotations

import torch
from torch.nn.modules.batchnorm import _NormBase

from poptorch_emu.compile.executable import Executable


def count_batches(model: torch.nn.Module, executable: Executable, num_calls: int) -> None:
    """Adds the micro-batches of `num_calls` training calls to the counts of one replica.

    A layer that `forward` uses twice is counted once; one that is in `eval()` or that the program
    does not update is not counted.
    """
    config = executable.config
    num_batches = num_calls * config.device_iterations * config.gradient_accumulation
    if not num_batches:
        return
    for path, module in model.named_modules():
        count = module._buffers.get("num_batches_tracked")
        mean = f"{path}.running_mean" if path else "running_mean"
        is_counted = isinstance(module, _NormBase) and module.training
        if is_counted and count is not None and mean in executable.variables:
            with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
                count.add_(num_batches)
