"""Values with the gradient of another value, distances of rows, and simulated number formats."""

from __future__ import annotations

import torch

from poptorch_emu.companions.poptorch_experimental_addons._impl import addon
from poptorch_emu.ops.named.copies import autograd_proxy as proxy_operator
from poptorch_emu.ops.named.distances import check_rows
from poptorch_emu.ops.named.simulated_floats import HALF, SINGLE, Format, quantised
from poptorch_emu.trace.places import blocks


def autograd_proxy(fwd: torch.Tensor, proxy: torch.Tensor) -> torch.Tensor:
    """Returns `fwd`; its gradient flows to `proxy` alone, unchanged (exact).

    Args:
        fwd: the value that is returned.
        proxy: tensor of the same shape that receives the gradient.

    Raises:
        ValueError: the shapes differ.

    Example:
        >>> import poptorch_emu.companions.poptorch_experimental_addons as pea
        >>> x = torch.tensor(5.7, requires_grad=True)
        >>> pea.autograd_proxy(x.round(), 3 * x).backward(torch.tensor(100.0))
        >>> x.grad
        tensor(300.)
    """
    if fwd.shape != proxy.shape:
        raise ValueError(
            f"autograd_proxy was given a value of shape {tuple(fwd.shape)} and a proxy of shape "
            f"{tuple(proxy.shape)}; they must be equal"
        )
    result: torch.Tensor = proxy_operator((fwd, proxy), {})
    return result


def distance_matrix(tensor1: torch.Tensor, tensor2: torch.Tensor, p: int) -> torch.Tensor:
    """Returns the distances between all rows of two matrices by norm p, 1 or 2 (exact).

    The gradient of a distance of 0 is 0. No intermediate is larger than the result.

    Args:
        tensor1: M points, of shape (M, K).
        tensor2: N points, of shape (N, K).
        p: order of the norm.

    Returns:
        (M, N), with the dtype of `tensor1`.

    Raises:
        NotImplementedError: `p` is neither 1 nor 2.
        ValueError: the tensors are not matrices with rows of equal length.

    Example:
        >>> import poptorch_emu.companions.poptorch_experimental_addons as pea
        >>> pea.distance_matrix(torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]), p=2)
        tensor([[5.]])
    """
    if p not in (1, 2):
        raise NotImplementedError(f"distance_matrix supports p=1 and p=2 only, not p={p}")
    check_rows(tensor1, tensor2)
    if not blocks.is_tracing():
        return torch.cdist(tensor1, tensor2, float(p))
    example = tensor1.new_empty(tensor1.size(0), tensor2.size(0))
    return addon(f"L{p}Distance", [tensor1, tensor2], example, {"root_path": ""})


def quantise_fpx(
    x: torch.Tensor,
    exponent_bits: int,
    mantissa_bits: int,
    rounding: str = "stochastic",
    fwd: bool = True,
    bwd: bool | None = None,
) -> torch.Tensor:
    """Rounds to values of a small floating-point format (exact).

    In a model the values pass through half precision, which allows at most 5 exponent bits and 10
    mantissa bits; outside a trace through single precision, which allows at most 8 and 23.

    Args:
        x: tensor of any shape; the result has the same dtype.
        exponent_bits: number of exponent bits of the format.
        mantissa_bits: number of mantissa bits of the format.
        rounding: "nearest", where ties go towards zero, or "stochastic".
        fwd: whether the value is rounded.
        bwd: `None` for no gradient, `False` for a gradient that passes unchanged, `True` for a
            gradient that is rounded to the same format.

    Raises:
        ValueError: `rounding` is unknown, or a number of bits is out of range.

    Example:
        >>> import poptorch_emu.companions.poptorch_experimental_addons as pea
        >>> pea.quantise_fpx(torch.tensor([0.2, 1.6]), 2, 1, rounding="nearest")
        tensor([0.2500, 1.5000])
    """
    carrier = HALF if blocks.is_tracing() else SINGLE
    form = Format(exponent_bits, mantissa_bits, rounding, carrier)
    gradient = "stop" if bwd is None else "quantise" if bwd else "ste"
    result: torch.Tensor = quantised(x, form, fwd, gradient)
    return result


def quantise_fpx_ste(
    x: torch.Tensor, exponent_bits: int, mantissa_bits: int, rounding: str = "stochastic"
) -> torch.Tensor:
    """Rounds the value and lets the gradient pass, as `quantise_fpx` with `bwd=False` (exact)."""
    return quantise_fpx(x, exponent_bits, mantissa_bits, rounding, fwd=True, bwd=False)


def quantise_fpx_grad(
    x: torch.Tensor, exponent_bits: int, mantissa_bits: int, rounding: str = "stochastic"
) -> torch.Tensor:
    """Keeps the value and rounds the gradient, as `quantise_fpx` with `fwd=False` (exact)."""
    return quantise_fpx(x, exponent_bits, mantissa_bits, rounding, fwd=False, bwd=True)
