"""Magnitudes of numbers as histograms of exponents, and the losses in a short type.

Multiplying all numbers by a power of two only shifts such a histogram. So one run tells the losses
with any loss scale.
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
    """Returns whether all numbers of a tensor are finite.

    A finite sum proves it in one pass; a sum that is not finite may have overflowed.
    """
    if not tensor.is_floating_point():
        return True
    return math.isfinite(tensor.sum().item()) or bool(tensor.isfinite().all())


@dataclass(frozen=True)
class TypeRange:
    """The range of a floating-point type, in exponents of two.

    Attributes:
        overflow: smallest exponent of numbers that become infinite.
        normal: exponent below which numbers have fewer digits.
        zero: exponent below which numbers become zero.
    """

    dtype: torch.dtype
    overflow: int
    normal: int
    zero: int

    @classmethod
    def of(cls, dtype: torch.dtype) -> TypeRange:
        """Returns the range of a type.

        Numbers between the largest one and the next power of two count as representable: in
            float16, those from 65,520 to 65,536. Source: IEEE 754-2019, section 3.6; rounding is to
            the nearest.
        """
        facts = torch.finfo(dtype)
        normal = math.frexp(facts.smallest_normal)[1] - _FREXP_OFFSET
        digits = math.frexp(facts.eps)[1] - _FREXP_OFFSET
        return cls(dtype, math.frexp(facts.max)[1], normal, normal + digits - 1)

    @property
    def name(self) -> str:
        """Name of the type, such as "float16"."""
        return str(self.dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Magnitudes:
    """Histogram of the magnitudes of one or several tensors.

    Attributes:
        counts: number of elements in [2**exponent, 2**(exponent + 1)), by exponent.
        num_zero: number of elements that are zero.
        num_nonfinite: number of elements that are infinite or NaN.
        smallest: smallest magnitude above zero; infinity if there is none.
        largest: largest finite magnitude.
    """

    counts: Mapping[int, int] = field(default_factory=dict)
    num_zero: int = 0
    num_nonfinite: int = 0
    smallest: float = math.inf
    largest: float = 0.0

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Magnitudes:
        """Returns the magnitudes of a floating-point tensor."""
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
        """Returns the magnitudes of several tensors together."""
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
        """Number of elements that are finite and not zero."""
        return sum(self.counts.values())

    def share(self, is_meant: Callable[[int], bool]) -> float:
        """Returns the share of the nonzero elements whose exponent fulfils `is_meant`."""
        meant = sum(count for exponent, count in self.counts.items() if is_meant(exponent))
        return meant / self.num_nonzero if meant else 0.0

    def overflow(self, of: TypeRange, shift: int = 0) -> float:
        """Returns the share of elements that overflow in a type if multiplied by 2**shift."""
        return self.share(lambda exponent: exponent + shift >= of.overflow)

    def flushed(self, of: TypeRange, shift: int = 0) -> float:
        """Returns the share of elements that become zero in the type."""
        return self.share(lambda exponent: exponent + shift < of.zero)

    def subnormal(self, of: TypeRange, shift: int = 0) -> float:
        """Returns the share of elements that lose digits, because they become subnormal."""
        return self.share(lambda exponent: of.zero <= exponent + shift < of.normal)

    def underflow(self, of: TypeRange, shift: int = 0) -> float:
        """Returns the share of elements that become zero or lose digits."""
        return self.share(lambda exponent: exponent + shift < of.normal)


@dataclass(frozen=True)
class ScaleLoss:
    """Losses of gradients with one loss scale.

    Attributes:
        exponent: exponent of the loss scale, which is 2**exponent.
        underflow: share of the gradients that become zero or lose digits.
        overflow: share of the gradients that become infinite.
    """

    exponent: int
    underflow: float
    overflow: float

    @property
    def scale(self) -> float:
        """The loss scale."""
        return 2.0**self.exponent


# Exponents of the loss scales to try. Float16 holds at most 2**15. Assumed: none above 2**24 helps.
_EXPONENTS = range(-8, 25)
# Assumed: a gain in underflow below this share does not justify a scale nearer to overflow.
_NEGLIGIBLE = 1e-3


def scale_losses(gradients: Magnitudes, of: TypeRange) -> tuple[ScaleLoss, ...]:
    """Returns the losses for each loss scale; `gradients` are those with a scale of 1."""
    return tuple(
        ScaleLoss(e, gradients.underflow(of, e), gradients.overflow(of, e)) for e in _EXPONENTS
    )


def best_scale(losses: Iterable[ScaleLoss]) -> ScaleLoss | None:
    """Returns the scale that loses least; `None` if all scales make a gradient infinite.

    A scale that makes a gradient infinite loses the whole step. Among the scales of 1 and above
    whose underflow is within 0.1 % of the least, the smallest wins, because it leaves most room for
    larger gradients.
    """
    held = [each for each in losses if not each.overflow]
    if not held:
        return None
    least = min(each.underflow for each in held) + _NEGLIGIBLE
    near = [each for each in held if each.underflow <= least]
    return min((e for e in near if e.exponent >= 0), key=lambda e: e.exponent, default=near[-1])
