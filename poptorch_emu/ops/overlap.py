"""Inputs and outputs whose transfer overlaps with compute."""

from __future__ import annotations

from typing import Any

import torch

from poptorch_emu.enums import OverlapMode
from poptorch_emu.errors import make_error
from poptorch_emu.ir.marks import OVERLAP_INPUT, OVERLAP_OUTPUT
from poptorch_emu.structure import flatten_tensors, rebuild
from poptorch_emu.trace import blocks


def set_overlap_for_input(input_tensors: Any, mode: OverlapMode) -> Any:
    """Returns its argument; says that the transfer of these inputs overlaps (accepted).

    Args:
        input_tensors: tensors in containers; what is no tensor stays as it is.
        mode: with what the transfer overlaps.

    Raises:
        Error: a leaf of the structure is given as a tensor, but is none.
    """
    return _marked(input_tensors, mode, OVERLAP_INPUT, "inputs")


def set_overlap_for_output(output_tensors: Any, mode: OverlapMode) -> Any:
    """Returns its argument; says that the transfer of these outputs overlaps (accepted).

    Args:
        output_tensors: tensors in containers; what is no tensor stays as it is.
        mode: with what the transfer overlaps.

    Raises:
        Error: a leaf of the structure is given as a tensor, but is none.
    """
    return _marked(output_tensors, mode, OVERLAP_OUTPUT, "outputs")


def _marked(structure: Any, mode: OverlapMode, operator: Any, what: str) -> Any:
    tensors = flatten_tensors(structure)
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise make_error(
                f"You may only set overlap for torch.tensor {what}. {type(tensor)} is not "
                "supported."
            )
    if not blocks.is_tracing():
        return rebuild(structure, iter(tensors))
    return rebuild(structure, iter([_Mark.apply(t, operator, mode.value) for t in tensors]))  # type: ignore[no-untyped-call]


class _Mark(torch.autograd.Function):
    """An identity that leaves an operation in the graph."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, operator: Any, mode: str) -> torch.Tensor:
        result: torch.Tensor = operator(tensor, mode)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return gradient, None, None
