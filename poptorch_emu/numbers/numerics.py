"""What half precision loses in a window, operation by operation, and which loss scale loses least.

Magnitudes are those of a float64 shadow: of a number that became zero only the shadow still knows
how small it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from poptorch_emu.numbers.magnitudes import (
    HALF_TYPES,
    Magnitudes,
    ScaleLoss,
    TypeRange,
    best_scale,
    scale_losses,
)
from poptorch_emu.numbers.run import Direction, Value


@dataclass(frozen=True)
class OperationNumbers:
    """The numbers of one result of an operation, over all micro-batches and replicas.

    Attributes:
        value: where it comes from.
        magnitudes: of the shadow, with the loss scale that the run had.
        overflow: share of the numbers that become infinite in the type.
        flushed: share that becomes zero; both, and the next, are of those that are not zero.
        subnormal: share that loses digits, since it is below the normal numbers.
        error: of the run, as the root of the mean square, relative to that of the shadow; `None`
            where there is no shadow, infinity where the run is not finite and the shadow is.
        input_error: the largest error of what the operation reads.
        at_one: what the magnitudes are with a loss scale of 1; `None` where it changes nothing.
    """

    value: Value
    magnitudes: Magnitudes
    overflow: float
    flushed: float
    subnormal: float
    error: float | None
    input_error: float
    at_one: Magnitudes | None = None

    @property
    def is_scaled(self) -> bool:
        """Whether it is proportional to the loss scale."""
        return self.at_one is not None

    @property
    def underflow(self) -> float:
        """Share of the numbers that become zero or lose digits."""
        return self.flushed + self.subnormal


@dataclass(frozen=True)
class UpdateNumbers:
    """The update of a weight of half precision.

    Attributes:
        name: of the weight.
        lost: share of the elements whose update is not zero and too small to change them when it is
            rounded to the nearest.
    """

    name: str
    lost: float


@dataclass(frozen=True)
class ModuleGradients:
    """The gradients that a module computes.

    Attributes:
        module: dotted path.
        at_one: share that underflows with a loss scale of 1.
        at_present: share that underflows with the scale that the run had.
        at_best: share that underflows with the best scale; `None` if there is none.
    """

    module: str
    at_one: float
    at_present: float
    at_best: float | None


@dataclass(frozen=True)
class Numerics:
    """The numbers of a window in half precision.

    Attributes:
        operations: in the order of the graph.
        updates: of weights of half precision; empty where that cannot be said.
        gradients: of each module, the worst first.
        loss_scaling: that the run had.
        scales: what each power of two as a loss scale loses.
        best: the one that loses least; `None` if there is no gradient of half precision.
        dtype: the type of half precision.
        is_supposed: whether the model has none, and shares are those that float16 would have.
        rounds_stochastically: whether weights are rounded at random.
        notes: what is not known, and why.
    """

    operations: tuple[OperationNumbers, ...]
    updates: tuple[UpdateNumbers, ...]
    gradients: tuple[ModuleGradients, ...]
    loss_scaling: float
    scales: tuple[ScaleLoss, ...]
    best: ScaleLoss | None
    dtype: torch.dtype
    is_supposed: bool
    rounds_stochastically: bool
    notes: tuple[str, ...] = ()

    def magnitudes(self, direction: Direction) -> Magnitudes:
        """Returns those of all values of half precision of a direction."""
        chosen = (o for o in self.operations if self.has_half(o.value))
        return Magnitudes.together(o.magnitudes for o in chosen if o.value.direction is direction)

    @property
    def scaled_gradients(self) -> Magnitudes:
        """Those of all gradients of half precision, with the loss scale that the run had."""
        chosen = (o for o in self.operations if o.is_scaled and self.has_half(o.value))
        return Magnitudes.together(o.magnitudes for o in chosen)

    def has_half(self, value: Value) -> bool:
        """Returns whether a value counts as one of half precision."""
        return self.is_supposed or value.dtype in HALF_TYPES

    def to_keep_wide(self) -> list[OperationNumbers]:
        """Returns the operations that lose too much in half precision whatever the loss scale.

        They overflow, or their own error is far above that of what they read. Assumed: 16 times as
        much, and more than eight units of the last place.
        """
        return [each for each in self.operations if self._is_too_much(each)]

    def _is_too_much(self, each: OperationNumbers) -> bool:
        if not self.has_half(each.value) or each.value.direction is Direction.GIVEN:
            return False
        if each.is_scaled:
            # Underflow is a matter of the scale, and so is overflow where some scale has none.
            return bool(each.overflow) and self.best is None
        unit = torch.finfo(self.dtype).eps
        if each.overflow or self.is_supposed:
            return bool(each.overflow)
        return each.error is not None and each.error > 16 * max(each.input_error, unit / 2)


def shares(magnitudes: Magnitudes, of: TypeRange) -> tuple[float, float, float]:
    """Returns which shares of numbers overflow, become zero and lose digits in a type."""
    return magnitudes.overflow(of), magnitudes.flushed(of), magnitudes.subnormal(of)


def found_numerics(
    operations: Iterable[OperationNumbers],
    updates: Iterable[UpdateNumbers],
    loss_scaling: float,
    *,
    rounds_stochastically: bool = False,
    notes: Iterable[str] = (),
) -> Numerics:
    """Returns what a walk has found, with the loss scale that loses least."""
    rows = list(operations)
    half = [row for row in rows if row.value.dtype in HALF_TYPES]
    is_supposed = not half
    dtype = torch.float16 if is_supposed else half[0].value.dtype
    of = TypeRange.of(dtype)
    if is_supposed:
        rows = half = [_as_if(row, of) for row in rows]
    scaled: dict[str, list[OperationNumbers]] = defaultdict(list)
    for row in half:
        if row.is_scaled:
            scaled[row.value.module].append(row)
    at_one = {
        module: Magnitudes.together(row.at_one for row in found if row.at_one is not None)
        for module, found in scaled.items()
    }
    losses = scale_losses(Magnitudes.together(at_one.values()), of) if scaled else ()
    best = best_scale(losses)
    modules = [
        ModuleGradients(
            module,
            at_one[module].underflow(of),
            Magnitudes.together(row.magnitudes for row in found).underflow(of),
            None if best is None else at_one[module].underflow(of, best.exponent),
        )
        for module, found in scaled.items()
    ]
    modules.sort(key=lambda each: -each.at_one)
    return Numerics(
        tuple(rows), tuple(updates), tuple(modules), loss_scaling, losses, best, dtype, is_supposed,
        rounds_stochastically, tuple(notes),
    )  # fmt: skip


def _as_if(row: OperationNumbers, of: TypeRange) -> OperationNumbers:
    overflow, flushed, subnormal = shares(row.magnitudes, of)
    return replace(row, overflow=overflow, flushed=flushed, subnormal=subnormal)
