"""Updates the host's counters of batches, which no program changes (see `integer_state.py`)."""

from __future__ import annotations

import torch

from poptorch_emu.compile.executable import Executable
from poptorch_emu.torch_versions import DisableTorchFunctionSubclass


def count_batches(model: torch.nn.Module, executable: Executable, num_calls: int) -> None:
    """Adds the micro-batches of `num_calls` calls to the counters of one replica."""
    config = executable.config
    num_batches = num_calls * config.device_iterations
    if config.is_training:
        num_batches *= config.gradient_accumulation
    if not num_batches:
        return
    buffers = dict(model.named_buffers())
    for name, added in executable.batch_counts.items():
        if added:
            with DisableTorchFunctionSubclass(), torch.no_grad():
                buffers[name].add_(num_batches * added)
