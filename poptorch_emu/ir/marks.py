"""Identity operators that annotate a tensor, and keys of a node's `meta`.

The operators are in the graph for the compiler's checks. `passes/simplify.py` removes them.
"""

from __future__ import annotations

import torch

from poptorch_emu.torch_versions import OpOverload

torch.library.define("poptorch_emu::set_overlap_for_input", "(Tensor tensor, str mode) -> Tensor")
torch.library.define("poptorch_emu::set_overlap_for_output", "(Tensor tensor, str mode) -> Tensor")

# Marks an operation that runs in float32 here and in float16 on an IPU; marks the casts around it.
IS_WIDENED, IS_WIDENING = "is_widened", "is_widening"

OVERLAP_INPUT: OpOverload = torch.ops.poptorch_emu.set_overlap_for_input.default
OVERLAP_OUTPUT: OpOverload = torch.ops.poptorch_emu.set_overlap_for_output.default


@torch.library.register_fake("poptorch_emu::set_overlap_for_input")  # type: ignore[untyped-decorator]
def _input(tensor: torch.Tensor, mode: str) -> torch.Tensor:
    return torch.empty_like(tensor)


@torch.library.register_fake("poptorch_emu::set_overlap_for_output")  # type: ignore[untyped-decorator]
def _output(tensor: torch.Tensor, mode: str) -> torch.Tensor:
    return torch.empty_like(tensor)
