"""How large the numbers of a tensor are, by their exponents, and what a short type makes of them.

Multiplying by a power of two moves a histogram of exponents and changes nothing else, so that one
run tells what any loss scale would have lost.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch

HALF_TYPES = (torch.float16, torch.bfloat16)
_FREXP_OFFSET = 1  # torch.frexp has mantissas in [0.5, 1); exponents here are those of [1, 2).


def is_finite(tensor: torch.Tensor) -> bool:
    """Returns whether all numbers of a tensor are finite; their sum tells in one pass if they are.

    A sum that is too large for the type tells nothing.
    """
    if not tensor.is_floating_point():
        return True
    return math.isfinite(tensor.sum().item()) or bool(tensor.isfinite().all())


@dataclass(frozen=True)
class TypeRange:
    """What a type of floating-point numbers can hold, in exponents of two.

    Attributes:
        overflow: numbers from 2**overflow on become infinite.
        normal: those below 2**normal have fewer digits.
        zero: those below 2**zero become zero.
    """

    dtype: torch.dtype
    overflow: int
    normal: int
    zero: int

    @classmethod
    def of(cls, dtype: torch.dtype) -> TypeRange:
        """Returns the range of a type.

        What lies between the largest number and the next power of two counts as held: of float16,
        65,520 to 65,536. Source: IEEE 754-2019, section 3.6; rounding is to the nearest.
        """
        facts = torch.finfo(dtype)
        normal = math.frexp(facts.smallest_normal)[1] - _FREXP_OFFSET
        digits = math.frexp(facts.eps)[1] - _FREXP_OFFSET
        return cls(dtype, math.frexp(facts.max)[1], normal, normal + digits - 1)

    @property
    def name(self) -> str:
        """What the type is called."""
        return str(self.dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Magnitudes:
    """The magnitudes of a tensor, or of several.

    Attributes:
        counts: how many numbers are in [2**exponent, 2**(exponent + 1)), by the exponent.
        num_zero: how many are zero.
        num_nonfinite: how many are infinite or NaN.
        smallest: but zero; infinity where there is none.
        largest: of the finite ones.
    """

    counts: Mapping[int, int] = field(default_factory=dict)
    num_zero: int = 0
    num_nonfinite: int = 0
    smallest: float = math.inf
    largest: float = 0.0

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Magnitudes:
        """Returns those of a tensor of floating-point numbers."""
        sizes = tensor.detach().reshape(-1).double().abs()
        is_finite = sizes.isfinite()
        num_nonfinite = sizes.numel() - int(is_finite.sum())
        known = sizes[(sizes > 0) & is_finite]
        num_zero = sizes.numel() - num_nonfinite - known.numel()
        if not known.numel():
            return cls({}, num_zero, num_nonfinite)
        exponents = torch.frexp(known)[1] - _FREXP_OFFSET
        least = int(exponents.min())
        found = torch.bincount((exponents - least).to(torch.int64)).tolist()
        counts = {least + step: count for step, count in enumerate(found) if count}
        return cls(counts, num_zero, num_nonfinite, known.min().item(), known.max().item())

    @classmethod
    def together(cls, all_of_them: Iterable[Magnitudes]) -> Magnitudes:
        """Returns those of several tensors."""
        counts: Counter[int] = Counter()
        num_zero, num_nonfinite, smallest, largest = 0, 0, math.inf, 0.0
        for each in all_of_them:
            counts.update(each.counts)
            num_zero += each.num_zero
            num_nonfinite += each.num_nonfinite
            smallest, largest = min(smallest, each.smallest), max(largest, each.largest)
        return cls(dict(sorted(counts.items())), num_zero, num_nonfinite, smallest, largest)

    @property
    def num_nonzero(self) -> int:
        """How many are finite and not zero."""
        return sum(self.counts.values())

    def share(self, is_meant: Callable[[int], bool]) -> float:
        """Returns the share of those that are not zero whose exponent is meant."""
        meant = sum(count for exponent, count in self.counts.items() if is_meant(exponent))
        return meant / self.num_nonzero if meant else 0.0

    def overflow(self, of: TypeRange, shift: int = 0) -> float:
        """Returns the share that becomes infinite in a type, times 2**shift."""
        return self.share(lambda exponent: exponent + shift >= of.overflow)

    def flushed(self, of: TypeRange, shift: int = 0) -> float:
        """Returns the share that becomes zero."""
        return self.share(lambda exponent: exponent + shift < of.zero)

    def subnormal(self, of: TypeRange, shift: int = 0) -> float:
        """Returns the share that loses digits, since it is below the normal numbers."""
        return self.share(lambda exponent: of.zero <= exponent + shift < of.normal)

    def underflow(self, of: TypeRange, shift: int = 0) -> float:
        """Returns the share that becomes zero or loses digits."""
        return self.share(lambda exponent: exponent + shift < of.normal)


@dataclass(frozen=True)
class ScaleLoss:
    """What gradients lose with a loss scale.

    Attributes:
        exponent: the scale is 2**exponent.
        underflow: the share that becomes zero or loses digits.
        overflow: the share that becomes infinite.
    """

    exponent: int
    underflow: float
    overflow: float

    @property
    def scale(self) -> float:
        """The loss scale."""
        return 2.0**self.exponent


# The scales that are tried; float16 holds no larger one than 2**15. Assumed: none above 2**24.
_EXPONENTS = range(-8, 25)
# Assumed: a share as small as this is not worth a scale nearer to overflow.
_NEGLIGIBLE = 1e-3


def scale_losses(gradients: Magnitudes, of: TypeRange) -> tuple[ScaleLoss, ...]:
    """Returns what each power of two loses of gradients, which are those of scale 1."""
    return tuple(
        ScaleLoss(e, gradients.underflow(of, e), gradients.overflow(of, e)) for e in _EXPONENTS
    )


def best_scale(losses: Iterable[ScaleLoss]) -> ScaleLoss | None:
    """Returns the scale that loses least; `None` if all make something infinite.

    A scale that makes something infinite loses the step. Of those within 0.1 % of the least
    underflow the smallest counts from 1 on, since it leaves most room for larger gradients.
    """
    held = [each for each in losses if not each.overflow]
    if not held:
        return None
    least = min(each.underflow for each in held) + _NEGLIGIBLE
    near = [each for each in held if each.underflow <= least]
    return min((e for e in near if e.exponent >= 0), key=lambda e: e.exponent, default=near[-1])
