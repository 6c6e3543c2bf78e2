"""Losses by half precision in a window, for each operation, and the loss scale that loses least.

Magnitudes come from a float64 reference, because only the reference still has the magnitude of a
number that became zero in the run.
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
from poptorch_emu.printed.records import Record


@dataclass(frozen=True)
class OperationNumbers(Record):
    """Measurements of one result of an operation, over all micro-batches and replicas.

    Attributes:
        value: description of the value.
        magnitudes: magnitudes in the reference, with the loss scale of the run.
        overflow: share of the nonzero numbers that become infinite in the value's type.
        flushed: share of the nonzero numbers that become zero.
        subnormal: share of the nonzero numbers that lose digits, because they are subnormal.
        error: root of the mean square error, relative to that of the reference; `None` without a
            reference, infinity if only the run is not finite.
        input_error: largest `error` among the inputs of the operation.
        at_one: magnitudes with a loss scale of 1; `None` if the value does not depend on it.
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
        """Whether the value is proportional to the loss scale."""
        return self.at_one is not None

    @property
    def underflow(self) -> float:
        """Share of the numbers that become zero or lose digits."""
        return self.flushed + self.subnormal


@dataclass(frozen=True)
class UpdateNumbers(Record):
    """Losses in the update of a half-precision weight.

    Attributes:
        name: name of the weight.
        lost: share of the nonzero updates that are too small to change the weight when it is
            rounded to the nearest.
    """

    name: str
    lost: float


@dataclass(frozen=True)
class ModuleGradients(Record):
    """Underflow in the gradients that a module computes.

    Attributes:
        module: dotted path of the module.
        at_one: share that underflows with a loss scale of 1.
        at_present: share that underflows with the loss scale of the run.
        at_best: share that underflows with the best loss scale; `None` if there is none.
    """

    module: str
    at_one: float
    at_present: float
    at_best: float | None


@dataclass(frozen=True)
class Numerics:
    """Losses by half precision in a window.

    Attributes:
        operations: measurements of all values, in the order of the graph.
        updates: losses in updates of half-precision weights; empty if they cannot be computed.
        gradients: underflow in the gradients of each module, the worst first.
        loss_scaling: loss scale of the run.
        scales: losses with each power of two as the loss scale.
        best: loss scale that loses least; `None` without half-precision gradients.
        dtype: half-precision type of the model.
        is_supposed: whether the model has no half-precision values, so that shares are those that
            float16 would have.
        rounds_stochastically: whether weights are rounded stochastically.
        notes: sentences that say what is not known, and why.
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
        """Returns the magnitudes of all half-precision values in a direction."""
        chosen = (o for o in self.operations if self.has_half(o.value))
        return Magnitudes.together(o.magnitudes for o in chosen if o.value.direction is direction)

    @property
    def scaled_gradients(self) -> Magnitudes:
        """Magnitudes of all half-precision gradients, with the loss scale of the run."""
        chosen = (o for o in self.operations if o.is_scaled and self.has_half(o.value))
        return Magnitudes.together(o.magnitudes for o in chosen)

    def has_half(self, value: Value) -> bool:
        """Returns whether a value counts as a half-precision value."""
        return self.is_supposed or value.dtype in HALF_TYPES

    def to_keep_wide(self) -> list[OperationNumbers]:
        """Returns the operations that lose too much in half precision whatever the loss scale.

        An operation is in the list if it overflows, or if its error is far above that of its
        inputs. Assumed: 16 times as large, and more than eight units of the last place.
        """
        return [each for each in self.operations if self._is_too_much(each)]

    def _is_too_much(self, each: OperationNumbers) -> bool:
        if not self.has_half(each.value) or each.value.direction is Direction.GIVEN:
            return False
        if each.is_scaled:
            # Another loss scale can avoid underflow, and overflow too if any scale is free of it.
            return bool(each.overflow) and self.best is None
        unit = torch.finfo(self.dtype).eps
        if each.overflow or self.is_supposed:
            return bool(each.overflow)
        return each.error is not None and each.error > 16 * max(each.input_error, unit / 2)


def shares(magnitudes: Magnitudes, of: TypeRange) -> tuple[float, float, float]:
    """Returns the shares of numbers that overflow, become zero and lose digits in a type."""
    return magnitudes.overflow(of), magnitudes.flushed(of), magnitudes.subnormal(of)


def found_numerics(
    operations: Iterable[OperationNumbers],
    updates: Iterable[UpdateNumbers],
    loss_scaling: float,
    *,
    rounds_stochastically: bool = False,
    notes: Iterable[str] = (),
) -> Numerics:
    """Returns the result of a walk, with the loss scale that loses least."""
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
