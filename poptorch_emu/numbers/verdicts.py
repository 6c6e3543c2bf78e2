"""How two values differ, and what a comparison of two runs has found."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch

from poptorch_emu.ir.text import type_text
from poptorch_emu.numbers.magnitudes import is_finite
from poptorch_emu.numbers.run import Direction, Place, Value
from poptorch_emu.numbers.side import Expectation

# Of the largest element: for what cannot be computed again. Assumed: half of the digits of float32.
_BLIND_TOLERANCE = 2.0**-12
_NUM_SHOWN = 4


class Verdict(IntEnum):
    """How two values differ, from the least to the worst (exact)."""

    EQUAL = 0
    FOLLOWS = 1  # From an earlier difference; the operation itself is as it should be.
    REORDERED = 2
    LESS_PRECISION = 3
    DIFFERENT = 4
    NOT_FINITE = 5

    def __str__(self) -> str:
        """Returns what it is called in a report."""
        return _NAMES[self]


_NAMES = {
    Verdict.EQUAL: "equal bits",
    Verdict.FOLLOWS: "follows",
    Verdict.REORDERED: "reordered sums",
    Verdict.LESS_PRECISION: "less precision",
    Verdict.DIFFERENT: "different",
    Verdict.NOT_FINITE: "not finite begins here",
}


@dataclass(frozen=True)
class Sample:
    """Two values, and a few numbers of them where they are furthest apart.

    Attributes:
        ours: type and shape.
        theirs: likewise.
        numbers: index of an element, our number, and theirs.
        largest: difference of two elements; NaN where one is not finite.
        relative: that, by the largest magnitude of both.
    """

    ours: str
    theirs: str
    numbers: tuple[tuple[tuple[int, ...], float, float], ...]
    largest: float
    relative: float


@dataclass(frozen=True)
class Difference:
    """A value that differs.

    Attributes:
        value: where it comes from.
        place: micro-batch and replica.
        verdict: how it differs.
        sample: of both values.
        reason: in words, what is not as it should be.
        equal_inputs: titles of inputs of the operation that were still equal.
        only_ours: operations between it and what was still explained that the other run lacks.
        only_theirs: the same of the other run.
    """

    value: Value
    place: Place
    verdict: Verdict
    sample: Sample
    reason: str = ""
    equal_inputs: tuple[str, ...] = ()
    only_ours: tuple[Value, ...] = ()
    only_theirs: tuple[Value, ...] = ()


@dataclass(frozen=True)
class ModuleRow:
    """What is known of the values of one module in one direction.

    Attributes:
        verdict: the worst.
        num_values: that were compared, each once a place.
        num_equal: of which all bits are equal.
        relative: the largest relative difference.
    """

    module: str
    direction: Direction
    verdict: Verdict
    num_values: int
    num_equal: int
    relative: float


@dataclass(frozen=True)
class NumbersComparison:
    """Two runs of a model side by side.

    Attributes:
        verdict: the worst that begins anywhere.
        first: the first difference of that verdict; `None` where all bits are equal.
        modules: in the order of the graph.
        ours: what our run is called.
        theirs: what the other one is called.
        num_operations: values of our graph that were compared at least once.
        num_missing: values of our graph of which the other run has none.
        notes: what was not compared, and why.
    """

    verdict: Verdict
    first: Difference | None
    modules: tuple[ModuleRow, ...]
    ours: str
    theirs: str
    num_operations: int
    num_missing: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judgement:
    """A verdict and its reason."""

    verdict: Verdict
    reason: str = ""


def judged(expected: Expectation, result: int, tensor: torch.Tensor) -> Verdict:
    """Returns whether a value is within the bound of rounding from the exact one."""
    exact = expected.results[result]
    if not tensor.is_floating_point():
        is_same = exact.shape == tensor.shape and torch.equal(exact, tensor.to(exact.dtype))
        return Verdict.REORDERED if is_same else Verdict.DIFFERENT
    bound = expected.bound(result, tensor.dtype)
    wide = tensor.double()
    # What is not finite is no number to compare, and fails here.
    if bool(((wide - exact).abs_() <= bound.tight).all()):
        return Verdict.REORDERED
    is_known = exact.isfinite() & wide.isfinite()
    off = torch.where(is_known, (wide - exact).abs(), torch.zeros_like(wide))
    if bool((off <= bound.tight).all()):
        return Verdict.REORDERED
    return Verdict.LESS_PRECISION if bool((off <= bound.loose).all()) else Verdict.DIFFERENT


def same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Returns whether two tensors have the same numbers, NaN in the same places included.

    Of two types, the wider one may have the same numbers, too.
    """
    if ours.shape != theirs.shape:
        return False
    if ours.dtype != theirs.dtype:
        if not (ours.is_floating_point() and theirs.is_floating_point()):
            return False
        ours, theirs = ours.double(), theirs.double()
    if torch.equal(ours, theirs):
        return True
    if not ours.is_floating_point() or is_finite(ours):
        return False
    return bool(((ours == theirs) | (ours.isnan() & theirs.isnan())).all())


def relative_distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Returns the largest difference of two values, relative to the largest magnitude of both."""
    wide = torch.promote_types(torch.promote_types(ours.dtype, theirs.dtype), torch.float32)
    one, two = ours.detach().to(wide), theirs.detach().to(wide)
    largest = (one - two).abs_().max().item() if one.numel() else 0.0
    scale = max((_largest(each) for each in (one, two) if each.numel()), default=0.0)
    if math.isfinite(largest) and math.isfinite(scale):
        return largest / scale if scale else 0.0
    return sample(ours, theirs).relative


def _largest(tensor: torch.Tensor) -> float:
    low, high = torch.aminmax(tensor)
    return max(-low.item(), high.item())


def sample(ours: torch.Tensor, theirs: torch.Tensor) -> Sample:
    """Returns a few numbers of two values of the same shape, the furthest apart first."""
    one, two = ours.detach().double().reshape(-1), theirs.detach().double().reshape(-1)
    off = (one - two).abs()
    # Infinities of one sign are equal, and whatever else is not finite is further than any number.
    off = torch.where(one == two, torch.zeros_like(off), off.nan_to_num(torch.inf, torch.inf))
    largest = off.max().item() if off.numel() else 0.0
    scale = max((v.abs().nan_to_num(0.0, 0.0).max().item() for v in (one, two) if v.numel()),
                default=0.0)  # fmt: skip
    places = off.topk(min(_NUM_SHOWN, off.numel())).indices.tolist()
    indices = (tuple(map(int, np.unravel_index(place, ours.shape))) for place in places)
    numbers = tuple(
        (index, one[place].item(), two[place].item())
        for index, place in zip(indices, places, strict=True)
    )
    relative = largest / scale if scale else 0.0
    return Sample(type_text(ours), type_text(theirs), numbers, largest, relative)


def blind(ours: torch.Tensor, theirs: torch.Tensor) -> Judgement:
    """Judges what cannot be computed again: by the largest difference."""
    shown = sample(ours, theirs)
    if is_shorter(ours.dtype, theirs.dtype) and shown.relative <= 2.0**-6:
        return Judgement(Verdict.LESS_PRECISION, f"{ours.dtype} here, {theirs.dtype} there.")
    if ours.is_floating_point():
        # What is rounded at random may be a whole unit of the last place off, up or down.
        tolerance = max(_BLIND_TOLERANCE, 2 * torch.finfo(ours.dtype).eps)
        if shown.relative <= tolerance:
            return Judgement(Verdict.REORDERED)
    return Judgement(Verdict.DIFFERENT)


def given_apart(ours: torch.Tensor, theirs: torch.Tensor) -> Judgement:
    """Judges what no operation of the window makes."""
    found = blind(ours, theirs)
    if found.verdict < Verdict.DIFFERENT:
        return found
    return Judgement(found.verdict, "The two runs have different numbers here.")


def is_shorter(one: torch.dtype, two: torch.dtype) -> bool:
    """Returns whether one of two types of floating-point numbers has fewer digits."""
    floats = one.is_floating_point and two.is_floating_point
    return floats and torch.finfo(one).eps != torch.finfo(two).eps
