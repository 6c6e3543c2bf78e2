"""Slices of fixed size whose start is a tensor."""

from __future__ import annotations

from typing import Any

import torch

from poptorch_emu.errors import Error, compiler_error, make_error
from poptorch_emu.trace.operators.dynamic_slices import (
    check_extent,
    check_size,
    check_step,
    positions,
)
from poptorch_emu.trace.places import blocks


def dynamic_slice(
    tensor: torch.Tensor, dim: int, start: torch.Tensor, size: int, step: int
) -> torch.Tensor:
    """Returns every `step`-th of the `size` positions of an axis that begin at `start` (exact).

    On the device, a slice beyond the end continues at the beginning; outside a trace it ends
    there, as an ordinary slice does.

    Args:
        tensor: tensor with one axis or more.
        dim: axis of the slice.
        start: integer tensor of one element.
        size: extent of the slice before steps are taken; a divisor of the size of the axis.
        step: distance between the selected positions.

    Raises:
        Error: an argument has the wrong type, or the slice does not fit the axis.

    Example:
        >>> poptorch.dynamic_slice(torch.arange(6), 0, torch.tensor([2]), size=3, step=1)
        tensor([2, 3, 4])
    """
    if not isinstance(tensor, torch.Tensor):
        raise _no_tensor("dynamic_slice must take a torch.tensor input", tensor)
    _check_place("dynamic_slice", dim, start, size)
    if not isinstance(step, int):
        raise make_error(f"Step must be an integer. {type(step)} is not supported.")
    length = tensor.size(dim)
    check_step(step)
    check_size(size, length)
    if not blocks.is_tracing():
        first = _as_integer(start)
        index = torch.arange(length)[first : first + size : step]
        return tensor.index_select(dim, index)
    return tensor.index_select(dim, positions(start, size, step, length))


def dynamic_update(
    input: torch.Tensor, src: torch.Tensor, dim: int, start: torch.Tensor, size: int
) -> torch.Tensor:
    """Returns `input` with `size` positions of an axis, from `start` on, taken from `src` (exact).

    On the device, an update beyond the end continues at the beginning.

    Args:
        input: tensor with one axis or more, which is not changed.
        src: tensor with the number of axes and the dtype of `input`, of size `size` in axis `dim`.
        dim: axis of the update.
        start: integer tensor of one element.
        size: number of positions; unlike for a slice it need not divide the size of the axis.

    Raises:
        Error: an argument has the wrong type, or the update does not fit the axis.

    Example:
        >>> x, new = torch.zeros(4), torch.ones(2)
        >>> poptorch.dynamic_update(x, new, 0, torch.tensor([1]), size=2)
        tensor([0., 1., 1., 0.])
    """
    if not isinstance(input, torch.Tensor):
        raise _no_tensor("dynamic_update must take a torch.tensor input", input)
    if not isinstance(src, torch.Tensor):
        raise _no_tensor("dynamic_update must take a torch.tensor src", src)
    _check_place("dynamic_update", dim, start, size)
    if input.dim() != src.dim():
        raise make_error(
            f"input and src tensors must have same dimensionality. ({input.dim()}) vs ({src.dim()})"
        )
    if input.dtype != src.dtype:
        raise make_error(
            f"input and src tensor must have same dtype. ({input.dtype} vs {src.dtype})"
        )
    length = input.size(dim)
    check_extent(size, length)
    if not blocks.is_tracing():
        first = _as_integer(start)
        return torch.slice_scatter(input, src, dim, first, first + size)
    return input.index_copy(dim, positions(start, size, 1, length), src)


def _check_place(function: str, dim: Any, start: Any, size: Any) -> None:
    if not isinstance(dim, int):
        raise make_error(f"Dimension must be an integer. {type(dim)} is not supported.")
    if not isinstance(start, torch.Tensor):
        raise _no_tensor(f"Slice start argument to {function} must be a torch.tensor", start)
    if not isinstance(size, int):
        raise make_error(f"Size must be an integer. {type(size)} is not supported.")
    if start.is_floating_point() or start.is_complex():
        raise compiler_error(
            f"Expected integer typed start tensor for {function}, but it is {start.dtype}."
        )


def _as_integer(start: torch.Tensor) -> int:
    return int(start.reshape(()).item())


def _no_tensor(expectation: str, value: object) -> Error:
    return make_error(f"{expectation}. {type(value)} is not supported.")
