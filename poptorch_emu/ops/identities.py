"""Operations that return their argument and mark it for the tracer."""

from __future__ import annotations

from typing import Any

import torch

from poptorch_emu.errors import make_error
from poptorch_emu.structure import flatten_tensors, rebuild
from poptorch_emu.trace.operators import loss
from poptorch_emu.trace.pytorch import checkpoints


def identity_loss(x: torch.Tensor, reduction: str) -> torch.Tensor:
    """Returns `x` reduced, and marks it as the loss of the model (exact).

    Args:
        x: tensor of any shape.
        reduction: "sum" or "mean" for a result without axes, "none" for the shape of `x`.

    Raises:
        AssertionError: `reduction` has another value.

    Example:
        >>> poptorch.identity_loss(torch.tensor([1.0, 3.0]), reduction="mean")
        tensor(2.)
    """
    assert reduction in ("sum", "mean", "none"), (
        f"Unsupported reduction type! Got {reduction!r}; choose 'sum', 'mean' or 'none'."
    )
    if reduction == "sum":
        value = x.sum()
    elif reduction == "mean":
        value = x.mean()
    else:
        value = x.clone()
    loss.mark(value, "identity_loss")
    return value


def nop(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy of `tensor` (exact).

    Raises:
        Error: the argument is not a tensor.
    """
    if not isinstance(tensor, torch.Tensor):
        raise make_error(f"nop must take a torch.tensor argument. {type(tensor)} is not supported.")
    return tensor.clone()


def recomputationCheckpoint(*tensors: Any) -> Any:
    """Returns its arguments; their values are stored instead of recomputed (exact).

    Returns:
        The one tensor, a tuple of several tensors, or the container that was passed.

    Raises:
        ValueError: an argument is not a tensor.
    """
    if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)):
        for item in tensors[0]:
            recomputationCheckpoint(item)
        return rebuild(tensors[0], iter(flatten_tensors(tensors[0])))
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"All inputs must be tensors, but one is of type {type(tensor)}.")
        checkpoints.mark(tensor, is_checkpoint=True)
    return tensors[0] if len(tensors) == 1 else tensors


def set_available_memory(tensor: torch.Tensor, available_memory_proportion: float) -> torch.Tensor:
    """Returns `tensor`; limits the memory of the operation that computed it (modelled).

    Args:
        tensor: result of the operation, whose record stores the limit.
        available_memory_proportion: share of the IPU's memory that the operation may use.

    Raises:
        Error: the argument is not a tensor.
    """
    if not isinstance(tensor, torch.Tensor):
        raise make_error(
            "You may only set available memory for torch.tensor values, but this is of type "
            f"{type(tensor)}."
        )
    checkpoints.mark(tensor, available_memory_proportion=float(available_memory_proportion))
    return tensor
