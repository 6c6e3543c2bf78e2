"""Numbers rounded to what a small floating-point format holds.

A format of E exponent and M mantissa bits has no infinities. With e = 2^(E-1) - 1 its largest
value is 2^e (2 - 2^-M), its smallest normal one 2^-e; below that it has subnormals. A number is
divided so that the subnormals of the type that holds it become those of the format, is rounded in
its bits, and is multiplied back.
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
    """The type whose bits are rounded.

    Attributes:
        dtype: the type.
        bits: integers of its size.
        exponent_bits: the most that a format may have.
        mantissa_bits: those of the type, and the most that a format may have.
        smallest_exponent: the smallest normal number is 2 to the minus this.
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
    """A small format, and how to round to it.

    Raises:
        ValueError: a number of bits is out of range, or there is no such rounding.
    """

    exponent_bits: int
    mantissa_bits: int
    rounding: str
    carrier: Carrier

    def __post_init__(self) -> None:
        """Checks the numbers."""
        if self.rounding not in ROUNDINGS:
            raise ValueError(f"rounding={self.rounding!r}; expected one of {list(ROUNDINGS)}")
        for name, least in (("exponent_bits", 1), ("mantissa_bits", 0)):
            value, most = getattr(self, name), getattr(self.carrier, name)
            if not least <= value <= most:
                raise ValueError(
                    f"{name}={value} is out of range; {self.carrier.dtype} holds {least} to {most}"
                )

    def rounded(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the values of `x` in this format, in the type of `x`."""
        carrier = self.carrier
        largest_exponent = 2 ** (self.exponent_bits - 1) - 1
        largest = 2.0**largest_exponent * (2 - 2.0**-self.mantissa_bits)
        # The half of 5 exponent bits has no room below: it loses its smallest binade.
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
    """Returns `x` in a format, or itself; its gradient stops, passes, or is rounded likewise."""
    value = form.rounded if fwd else torch.clone
    if gradient == "stop":
        return value(x.detach())
    passes = form.rounded if gradient == "quantise" else torch.clone
    return _Quantise.apply(x, value, passes)  # type: ignore[no-untyped-call]


def simulated_quant(inputs: Sequence[torch.Tensor], given: Attributes) -> Any:
    """Returns a tensor in a small format, through half precision.

    Raises:
        ValueError: the format or the kind of gradient does not exist.
    """
    if given["bwd"] not in GRADIENTS:
        raise ValueError(f"the attribute 'bwd' is {given['bwd']!r}; expected one of {GRADIENTS}")
    form = Format(given["exponent_bits"], given["mantissa_bits"], given["rounding"], HALF)
    return quantised(inputs[0], form, bool(given["fwd"]), given["bwd"])
