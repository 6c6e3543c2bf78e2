"""The operator for moving averages of weights, which change once for each update.

While a model is recorded, an average is a node of `MOVING_AVERAGE`, which has no kernel. A pass
(`passes/averages.py`) removes each node and adds an `Average` to the graph instead.
"""

from __future__ import annotations

import torch

from poptorch_emu.torch_versions import OpOverload

torch.library.define(
    "poptorch_emu::moving_average", "(Tensor weight, Tensor average, Tensor factor) -> Tensor"
)

MOVING_AVERAGE: OpOverload = torch.ops.poptorch_emu.moving_average.default


@torch.library.register_fake("poptorch_emu::moving_average")  # type: ignore[untyped-decorator]
def _moving_average(
    weight: torch.Tensor, average: torch.Tensor, factor: torch.Tensor
) -> torch.Tensor:
    return average.new_empty(average.shape)
