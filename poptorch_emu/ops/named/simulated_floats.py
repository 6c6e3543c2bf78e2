"""Rounds numbers to the values of a small floating-point format.

A format with E exponent and M mantissa bits has no infinities. With e = 2^(E-1) - 1 its largest
value is 2^e (2 - 2^-M) and its smallest normal value 2^-e; smaller values are subnormal. A number
is first divided so that the format's subnormals become subnormals of the carrier dtype. Then its
bits are rounded, and the result is multiplied back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from poptorch_emu.ops.named.named_operator import Attributes

ROUNDINGS = ("nearest", "stochastic")
GRADIENTS = ("stop", "ste", "quantise")


@dataclass(frozen=True)
class Carrier:
    """The dtype whose bits are rounded.

    Attributes:
        dtype: the floating-point dtype.
        bits: integer dtype of the same size.
        exponent_bits: largest number of exponent bits of a format.
        mantissa_bits: number of mantissa bits of `dtype`, the largest of a format.
        smallest_exponent: n, if the smallest normal number is 2^-n.
    """

    dtype: torch.dtype
    bits: torch.dtype
    exponent_bits: int
    mantissa_bits: int
    smallest_exponent: int


# The IPU rounds in half precision, the host in single precision.
HALF = Carrier(torch.float16, torch.int16, 5, 10, 14)
SINGLE = Carrier(torch.float32, torch.int32, 8, 23, 126)


@dataclass(frozen=True)
class Format:
    """A small format and its rounding.

    Raises:
        ValueError: a number of bits is out of range, or `rounding` is unknown.
    """

    exponent_bits: int
    mantissa_bits: int
    rounding: str
    carrier: Carrier

    def __post_init__(self) -> None:
        """Checks the rounding and the numbers of bits."""
        if self.rounding not in ROUNDINGS:
            raise ValueError(f"rounding={self.rounding!r}; expected one of {list(ROUNDINGS)}")
        for name, least in (("exponent_bits", 1), ("mantissa_bits", 0)):
            value, most = getattr(self, name), getattr(self.carrier, name)
            if not least <= value <= most:
                raise ValueError(
                    f"{name}={value} is out of range; {self.carrier.dtype} holds {least} to {most}"
                )

    def rounded(self, x: torch.Tensor) -> torch.Tensor:
        """Returns `x` rounded to this format, in the dtype of `x`."""
        carrier = self.carrier
        largest_exponent = 2 ** (self.exponent_bits - 1) - 1
        largest = 2.0**largest_exponent * (2 - 2.0**-self.mantissa_bits)
        # With 5 exponent bits float16 has no room for the subnormals, so the smallest binade is
        # lost.
        divisor = max(1.0, 2.0 ** (carrier.smallest_exponent - largest_exponent))
        mask = 2 ** (carrier.mantissa_bits - self.mantissa_bits) - 1
        bits = (x.to(carrier.dtype).clamp(-largest, largest) / divisor).view(carrier.bits)
        bits = (bits + self._offset(x, mask)) & ~mask
        result: torch.Tensor = bits.view(carrier.dtype) * divisor
        return result.to(x.dtype)

    def _offset(self, x: torch.Tensor, mask: int) -> Any:
        if self.rounding == "nearest":
            return mask // 2
        return torch.randint(0, mask + 1, x.shape, dtype=torch.int32, device=x.device).to(
            self.carrier.bits
        )


class _Quantise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, forward: Callable[..., Any], backward: Callable[..., Any]
    ) -> Any:
        ctx.backward = backward
        return forward(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.backward(gradients[0]), None, None


def quantised(x: torch.Tensor, form: Format, fwd: bool, gradient: str) -> Any:
    """Returns `x`, rounded if `fwd`; its gradient stops, passes, or is rounded, too."""
    value = form.rounded if fwd else torch.clone
    if gradient == "stop":
        return value(x.detach())
    passes = form.rounded if gradient == "quantise" else torch.clone
    return _Quantise.apply(x, value, passes)  # type: ignore[no-untyped-call]


def simulated_quant(inputs: Sequence[torch.Tensor], given: Attributes) -> Any:
    """Returns a tensor rounded to a small format, computed in half precision.

    Raises:
        ValueError: the format or the kind of gradient is unknown.
    """
    if given["bwd"] not in GRADIENTS:
        raise ValueError(f"the attribute 'bwd' is {given['bwd']!r}; expected one of {GRADIENTS}")
    form = Format(given["exponent_bits"], given["mantissa_bits"], given["rounding"], HALF)
    return quantised(inputs[0], form, bool(given["fwd"]), given["bwd"])
