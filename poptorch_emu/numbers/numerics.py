"""What half precision loses in a window, operation by operation, and which loss scale loses least.

Magnitudes are those of a float64 shadow: of a number that became zero only the shadow still knows
how small it was.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import fx

from poptorch_emu.ir.graph import SinkKind, operation_of, record_of
from poptorch_emu.ir.record import Phase
from poptorch_emu.numbers.engine_run import ObservedGraph
from poptorch_emu.numbers.graph_values import is_drawn
from poptorch_emu.numbers.magnitudes import (
    Magnitudes,
    ScaleLoss,
    TypeRange,
    best_scale,
    scale_losses,
)
from poptorch_emu.numbers.run import FIRST, Direction, Place, Run, Value
from poptorch_emu.numbers.shadow import Shadow

HALF_TYPES = (torch.float16, torch.bfloat16)


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


@dataclass
class _Sums:
    """What is added up of one value over all places."""

    magnitudes: list[Magnitudes]
    at_one: list[Magnitudes] = field(default_factory=list)
    off: float = 0.0
    size: float = 0.0
    has_shadow: bool = True


class NumericsWalk:
    """Walks through a run beside its shadow.

    Attributes:
        gradients: sums of the shadow's gradients over all places, of the weights that were named.
    """

    def __init__(
        self,
        observed: ObservedGraph,
        run: Run,
        loss_scaling: float,
        wanted: Iterable[str] = (),
        on_step: Callable[[], object] = lambda: None,
    ) -> None:
        """Takes a run.

        Args:
            observed: what it was made of.
            run: has the values.
            loss_scaling: that it had.
            wanted: names of the weights whose gradients are added up.
            on_step: called after each value of each place.
        """
        self._observed, self._run, self._on_step = observed, run, on_step
        self._loss_scaling = loss_scaling
        self._scaled = _scaled(observed)
        self._sums: dict[int, _Sums] = {}
        names = frozenset(wanted)
        self._wanted = {
            node: sink.name
            for sink, node in observed.graph.results
            if sink.kind is SinkKind.GRADIENT and sink.name in names
        }
        self.gradients: dict[str, torch.Tensor] = {}
        for place in run.places:
            self._walk(place)

    def _walk(self, place: Place) -> None:
        numbers, run = self._observed.numbers, self._run
        shadow = Shadow(self._observed.graph, run, numbers, place, self._loss_scaling)
        for node, wide in shadow.values():
            if node in numbers:
                own = run.read(numbers[node], place)
                if own is not None:
                    is_given = node.op == "placeholder" or is_drawn(node)
                    self._add(node, own, own.double() if is_given else wide)
                self._on_step()
            if node in self._wanted:
                self._add_gradient(node, place, wide)

    def _add(self, node: fx.Node, own: torch.Tensor, wide: torch.Tensor | None) -> None:
        if not own.is_floating_point():
            return
        sums = self._sums.setdefault(self._observed.numbers[node], _Sums([]))
        sums.has_shadow = sums.has_shadow and wide is not None
        exact = own.double() if wide is None else wide
        sums.magnitudes.append(Magnitudes.of(exact))
        if node in self._scaled:
            is_one = self._loss_scaling in (0.0, 1.0)
            unscaled = None if is_one else Magnitudes.of(exact / self._loss_scaling)
            sums.at_one.append(unscaled or sums.magnitudes[-1])
        is_finite = exact.isfinite()
        off = (own.double() - exact)[is_finite].square().sum().item()
        sums.off += math.inf if math.isnan(off) else off
        sums.size += exact[is_finite].square().sum().item()

    def _add_gradient(self, node: fx.Node, place: Place, wide: torch.Tensor | None) -> None:
        name, numbers = self._wanted[node], self._observed.numbers
        value = self._run.read(numbers[node], place) if wide is None else wide
        if value is not None:
            total = self.gradients.get(name)
            self.gradients[name] = value.float() if total is None else total.add_(value)

    def operations(self) -> Iterator[OperationNumbers]:
        """Yields what is known of each value; shares are those of its own type."""
        yield from self._of_window(Direction.GIVEN)
        errors: dict[int, float] = {}
        for node, number in self._observed.numbers.items():
            if number in self._sums:
                sums = self._sums[number]
                read = _inputs(node, self._observed.numbers)
                before = max((errors.get(each, 0.0) for each in read), default=0.0)
                found = _row(self._run.values[number], sums, before)
                errors[number] = found.error or 0.0
                yield found
        yield from self._of_window(Direction.UPDATE)

    def _of_window(self, direction: Direction) -> Iterator[OperationNumbers]:
        """Yields what is there once a window."""
        observed = set(self._observed.numbers.values())
        for number, value in enumerate(self._run.values):
            if number in observed or value.direction is not direction:
                continue
            tensor = self._run.read(number, FIRST)
            if tensor is not None and tensor.is_floating_point():
                # What is given is exact, and an update has no shadow.
                has_shadow = direction is Direction.GIVEN
                sums = _Sums([Magnitudes.of(tensor)], has_shadow=has_shadow)
                yield _row(value, sums, 0.0)


def _row(value: Value, sums: _Sums, before: float) -> OperationNumbers:
    magnitudes = Magnitudes.together(sums.magnitudes)
    shares = _shares(magnitudes, TypeRange.of(value.dtype))
    at_one = Magnitudes.together(sums.at_one) if sums.at_one else None
    return OperationNumbers(value, magnitudes, *shares, _error(sums), before, at_one)


def _shares(magnitudes: Magnitudes, of: TypeRange) -> tuple[float, float, float]:
    return magnitudes.overflow(of), magnitudes.flushed(of), magnitudes.subnormal(of)


def _error(sums: _Sums) -> float | None:
    if not sums.has_shadow:
        return None
    if not sums.size:
        return math.inf if sums.off else 0.0
    return math.sqrt(sums.off / sums.size)


def _scaled(observed: ObservedGraph) -> set[fx.Node]:
    """Returns the values of backward that are proportional to the first gradient.

    Back-propagation starts with it: it is the first operation of backward.
    """
    found: set[fx.Node] = set()
    for node in observed.graph.fx.nodes:
        if node.op == "call_function" and record_of(operation_of(node)).phase is Phase.BACKWARD:
            if not found or any(each in found for each in node.all_input_nodes):
                found.add(node)
    return found


def _inputs(node: fx.Node, numbers: Mapping[fx.Node, int]) -> list[int]:
    """Returns the numbers of what an operation reads, through what was not seen."""
    found, pending = list[int](), [*operation_of(node).all_input_nodes]
    seen = set[fx.Node]()
    while pending:
        each = pending.pop()
        if each in seen:
            continue
        seen.add(each)
        if each in numbers:
            found.append(numbers[each])
        elif each.op == "call_function":
            pending += each.all_input_nodes
    return found


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
    overflow, flushed, subnormal = _shares(row.magnitudes, of)
    return replace(row, overflow=overflow, flushed=flushed, subnormal=subnormal)
