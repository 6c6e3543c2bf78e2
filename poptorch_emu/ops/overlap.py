"""Marks of inputs and outputs whose transfer overlaps with computation."""

from __future__ import annotations

from typing import Any

import torch

from poptorch_emu.enums import OverlapMode
from poptorch_emu.ir.marks import OVERLAP_INPUT, OVERLAP_OUTPUT
from poptorch_emu.structure import flatten_tensors, rebuild
from poptorch_emu.trace.places import blocks


def set_overlap_for_input(input_tensors: Any, mode: OverlapMode) -> Any:
    """Returns its argument; marks these inputs to be transferred during computation (modelled).

    Args:
        input_tensors: tensors in containers; values that are not tensors stay unchanged.
        mode: part of the computation that the transfer overlaps with.

    Raises:
        TypeError: `mode` is not an `OverlapMode`.
    """
    return _marked(input_tensors, mode, OVERLAP_INPUT)


def set_overlap_for_output(output_tensors: Any, mode: OverlapMode) -> Any:
    """Returns its argument; marks these outputs to be transferred during computation (modelled).

    Args:
        output_tensors: tensors in containers; values that are not tensors stay unchanged.
        mode: part of the computation that the transfer overlaps with.

    Raises:
        TypeError: `mode` is not an `OverlapMode`.
    """
    return _marked(output_tensors, mode, OVERLAP_OUTPUT)


def _marked(structure: Any, mode: OverlapMode, operator: Any) -> Any:
    if not isinstance(mode, OverlapMode):
        raise TypeError(f"mode must be a poptorch.OverlapMode, not {mode!r} ({type(mode)}).")
    tensors = flatten_tensors(structure)
    if not blocks.is_tracing():
        return rebuild(structure, iter(tensors))
    return rebuild(structure, iter([_Mark.apply(t, operator, mode.value) for t in tensors]))  # type: ignore[no-untyped-call]


class _Mark(torch.autograd.Function):
    """An identity that records an operation in the graph."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, operator: Any, mode: str) -> torch.Tensor:
        result: torch.Tensor = operator(tensor, mode)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return gradient, None, None
