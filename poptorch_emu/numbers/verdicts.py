"""Verdicts on two values that differ, and the result of a comparison of two runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch

from poptorch_emu.ir.text import type_text
from poptorch_emu.numbers.magnitudes import is_finite
from poptorch_emu.numbers.run import Direction, Position, Value
from poptorch_emu.numbers.run_values import Expectation
from poptorch_emu.printed.records import Record

# Tolerance relative to the largest element, for values that cannot be computed again. Assumed: half
# of the digits of float32.
_BLIND_TOLERANCE = 2.0**-12
_NUM_SHOWN = 4


class Verdict(IntEnum):
    """Kinds of differences between two values, from the least to the worst (exact)."""

    EQUAL = 0
    FOLLOWS = 1  # Caused by an earlier difference; the operation itself is correct.
    REORDERED = 2
    LESS_PRECISION = 3
    DIFFERENT = 4
    NOT_FINITE = 5

    def __str__(self) -> str:
        """Returns the name of the verdict in reports."""
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
class Sample(Record):
    """Types of two values, and the elements at which they differ most.

    Attributes:
        ours: type and shape of this run's value.
        theirs: type and shape of the other run's value.
        numbers: (index, this run's number, the other run's number) of a few elements.
        largest: largest difference of two elements; infinity if one is not finite, NaN if one run
            lacks the value.
        relative: `largest`, divided by the largest finite magnitude in both values.
    """

    ours: str
    theirs: str
    numbers: tuple[tuple[tuple[int, ...], float, float], ...]
    largest: float
    relative: float


@dataclass(frozen=True)
class Difference(Record):
    """A value that differs between the two runs.

    Attributes:
        value: description of the value in this run.
        position: (micro-batch, replica) of the value.
        verdict: kind of the difference.
        sample: numbers of both values.
        reason: sentence that says why this is a difference; "" if there is nothing to say.
        equal_inputs: titles of the operation's inputs that are equal in both runs.
        only_ours: operations since the last matched values that only this run has.
        only_theirs: operations since the last matched values that only the other run has.
    """

    value: Value
    position: Position
    verdict: Verdict
    sample: Sample
    reason: str = ""
    equal_inputs: tuple[str, ...] = ()
    only_ours: tuple[Value, ...] = ()
    only_theirs: tuple[Value, ...] = ()


@dataclass(frozen=True)
class ModuleRow(Record):
    """Summary of the compared values of one module in one direction.

    Attributes:
        verdict: worst verdict on any of the values.
        num_values: number of compared values; a value counts once for each position.
        num_equal: number of compared values whose bits are all equal.
        relative: largest relative difference.
    """

    module: str
    direction: Direction
    verdict: Verdict
    num_values: int
    num_equal: int
    relative: float


@dataclass(frozen=True)
class NumbersComparison:
    """The result of comparing two runs of a model.

    Attributes:
        verdict: worst verdict that does not follow from an earlier difference.
        first: first difference with that verdict; `None` if all bits are equal.
        modules: one row for each module and direction, in the order of the graph.
        ours: title of this run.
        theirs: title of the other run.
        num_operations: number of values of our graph that were compared at least once.
        num_missing: number of values of our graph that the other run does not have.
        notes: sentences that say what was not compared, and why.
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
    """Returns the verdict on a value from its distance to the exact result."""
    exact = expected.results[result]
    if not tensor.is_floating_point():
        is_same = exact.shape == tensor.shape and torch.equal(exact, tensor.to(exact.dtype))
        return Verdict.REORDERED if is_same else Verdict.DIFFERENT
    bound = expected.bound(result, tensor.dtype)
    wide = tensor.double()
    # A comparison with an element that is not finite is false; the check below skips such elements.
    if bool(((wide - exact).abs_() <= bound.tight).all()):
        return Verdict.REORDERED
    is_known = exact.isfinite() & wide.isfinite()
    off = torch.where(is_known, (wide - exact).abs(), torch.zeros_like(wide))
    if bool((off <= bound.tight).all()):
        return Verdict.REORDERED
    return Verdict.LESS_PRECISION if bool((off <= bound.loose).all()) else Verdict.DIFFERENT


def same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Returns whether two tensors have the same numbers, and NaN in the same positions.

    Floating-point tensors of two types have the same numbers if widening makes them equal.
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
    """Returns a few elements of two values of the same shape, the largest difference first."""
    one, two = ours.detach().double().reshape(-1), theirs.detach().double().reshape(-1)
    off = (one - two).abs()
    # Equal infinities have no distance; any other element that is not finite has an infinite one.
    off = torch.where(one == two, torch.zeros_like(off), off.nan_to_num(torch.inf, torch.inf))
    largest = off.max().item() if off.numel() else 0.0
    scale = max((v.abs().nan_to_num(0.0, 0.0).max().item() for v in (one, two) if v.numel()),
                default=0.0)  # fmt: skip
    positions = off.topk(min(_NUM_SHOWN, off.numel())).indices.tolist()
    indices = (tuple(map(int, np.unravel_index(position, ours.shape))) for position in positions)
    numbers = tuple(
        (index, one[position].item(), two[position].item())
        for index, position in zip(indices, positions, strict=True)
    )
    relative = largest / scale if scale else 0.0
    return Sample(type_text(ours), type_text(theirs), numbers, largest, relative)


def blind(ours: torch.Tensor, theirs: torch.Tensor) -> Judgement:
    """Returns the judgement by the largest difference, for values that cannot be computed again."""
    shown = sample(ours, theirs)
    if is_shorter(ours.dtype, theirs.dtype) and shown.relative <= 2.0**-6:
        return Judgement(Verdict.LESS_PRECISION, f"{ours.dtype} here, {theirs.dtype} there.")
    if ours.is_floating_point():
        # Stochastic rounding may change a number by a whole unit of the last place, up or down.
        tolerance = max(_BLIND_TOLERANCE, 2 * torch.finfo(ours.dtype).eps)
        if shown.relative <= tolerance:
            return Judgement(Verdict.REORDERED)
    return Judgement(Verdict.DIFFERENT)


def given_apart(ours: torch.Tensor, theirs: torch.Tensor) -> Judgement:
    """Returns the judgement on values that no operation of the window computes."""
    found = blind(ours, theirs)
    if found.verdict < Verdict.DIFFERENT:
        return found
    return Judgement(found.verdict, "The two runs have different numbers here.")


def is_shorter(one: torch.dtype, two: torch.dtype) -> bool:
    """Returns whether two floating-point types have different precisions."""
    floats = one.is_floating_point and two.is_floating_point
    return floats and torch.finfo(one).eps != torch.finfo(two).eps
