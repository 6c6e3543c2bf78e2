"""A matrix product that is computed in parts."""

from __future__ import annotations

import torch

from poptorch_emu.enums import MatMulSerializationMode as Mode
from poptorch_emu.errors import compiler_error, require
from poptorch_emu.trace.places import blocks


def serializedMatMul(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    mode: Mode,
    factor: int = 0,
    keep_precision: bool = False,
) -> torch.Tensor:
    """Returns `torch.matmul(lhs, rhs)`, computed in `factor` parts (exact).

    Args:
        lhs: left matrices, of shape (..., rows, reduced).
        rhs: right matrices, of shape (..., reduced, columns).
        mode: axis that is cut: rows, reduced or columns; or none.
        factor: number of parts, a divisor of that axis; 0 leaves the product whole.
        keep_precision: whether parts of a cut reduced axis are added in float32.

    Raises:
        AssertionError: an argument has the wrong type.
        Error: `factor` does not divide the axis.

    Example:
        >>> lhs, rhs = torch.ones(2, 4), torch.ones(4, 6)
        >>> mode = poptorch.MatMulSerializationMode.OutputChannels
        >>> poptorch.serializedMatMul(lhs, rhs, mode, factor=3).shape
        torch.Size([2, 6])
    """
    require(isinstance(lhs, torch.Tensor), f"lhs is {type(lhs)}, not a tensor.")
    require(isinstance(rhs, torch.Tensor), f"rhs is {type(rhs)}, not a tensor.")
    require(isinstance(mode, Mode), f"mode is {mode!r}, not a MatMulSerializationMode.")
    require(isinstance(factor, int), f"factor is {factor!r}, not an integer.")
    require(isinstance(keep_precision, bool), f"keep_precision is {keep_precision!r}, no bool.")
    if not blocks.is_tracing() or mode is Mode.Disabled or factor <= 1:
        return torch.matmul(lhs, rhs)
    if mode is Mode.InputChannels:
        rows_of_product = -1 if rhs.dim() == 1 else -2
        return torch.cat([a @ rhs for a in _parts(lhs, -2, factor, mode)], dim=rows_of_product)
    if mode is Mode.OutputChannels:
        _check_can_cut(rhs.dim() > 1, rhs, -1, factor, mode)
        return torch.cat([lhs @ part for part in _parts(rhs, -1, factor, mode)], dim=-1)
    columns = _parts(lhs, -1, factor, mode)
    rows = _parts(rhs, 0 if rhs.dim() == 1 else -2, factor, mode)
    products = [a @ b for a, b in zip(columns, rows, strict=True)]
    if keep_precision:
        return torch.stack([product.float() for product in products]).sum(0).to(lhs.dtype)
    return torch.stack(products).sum(0)


def _parts(tensor: torch.Tensor, dim: int, factor: int, mode: Mode) -> tuple[torch.Tensor, ...]:
    can_cut = tensor.dim() >= -dim and tensor.size(dim) % factor == 0
    _check_can_cut(can_cut, tensor, dim, factor, mode)
    return tensor.chunk(factor, dim)


def _check_can_cut(can_cut: bool, tensor: torch.Tensor, dim: int, factor: int, mode: Mode) -> None:
    if not can_cut:
        raise compiler_error(
            f"serializedMatMul in mode {mode.name} cannot cut axis {dim} of a tensor of shape "
            f"{list(tensor.shape)} into {factor} parts; choose a factor that divides it."
        )
