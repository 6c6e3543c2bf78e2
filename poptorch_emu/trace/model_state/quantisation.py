"""Observers of quantisation-aware training, whose buffers get their size in the first call."""

from __future__ import annotations

import math
from typing import Any

import torch

from poptorch_emu.ir.graph import source_of
from poptorch_emu.trace.model_state import module_state
from poptorch_emu.trace.recording.regions import current

_SCHEMA = torch.ops.aten.fused_moving_avg_obs_fake_quant.default._schema
_NAMES = tuple(argument.name for argument in _SCHEMA.arguments)


def fused_fake_quantisation(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Resizes the buffers of an observer to its channels, as the kernel does in its first call.

    This happens before the operation is recorded, because a graph has static shapes.
    """
    given = {**dict(zip(_NAMES, args, strict=False)), **kwargs}
    smallest, largest = given["running_min"], given["running_max"]
    if given.get("per_row_fake_quant") and smallest.device.type == "ipu" and not smallest.numel():
        size = given["self"].size(given["ch_axis"])
        _resize(smallest, size, math.inf)
        _resize(largest, size, -math.inf)
        _resize(given["scale"], size)
        _resize(given["zero_point"], size)
    return torch.fused_moving_avg_obs_fake_quant(*args, **kwargs)


def _resize(buffer: Any, size: int, fill: float | None = None) -> None:
    """Resizes a 1-d buffer that nothing has read yet, in the trace and on the host."""
    recorder = current().recorder
    node = recorder.find(buffer)
    assert node is not None, "buffers are sources of the outermost graph"
    host = module_state.resize_host(buffer, size, fill)
    recorder.memo.resize(buffer, size)
    node.meta["layout"] = (tuple(buffer.shape), buffer.stride())
    name = source_of(node).name
    if name in recorder.graph.constants:
        recorder.graph.constants[name] = host.detach().clone()
