"""Measures each value of a half-precision run against its float64 reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import fx

from poptorch_emu.ir.graph import SinkKind, operation_of, record_of
from poptorch_emu.ir.record import Phase
from poptorch_emu.numbers.engine_run import ObservedGraph
from poptorch_emu.numbers.float64_reference import Float64Reference
from poptorch_emu.numbers.graph_values import is_drawn, numbers_read
from poptorch_emu.numbers.magnitudes import Magnitudes, TypeRange
from poptorch_emu.numbers.numerics import OperationNumbers, shares
from poptorch_emu.numbers.run import FIRST, Direction, Position, Run, Value


@dataclass
class _Sums:
    """Sums over all positions for one value."""

    magnitudes: list[Magnitudes]
    at_one: list[Magnitudes] = field(default_factory=list)
    off: float = 0.0
    size: float = 0.0
    has_shadow: bool = True


class NumericsWalk:
    """Walks through a run and its reference, position by position.

    Attributes:
        gradients: sums of the reference's gradients over all positions, for the weights in
            `wanted`.
    """

    def __init__(
        self,
        observed: ObservedGraph,
        run: Run,
        loss_scaling: float,
        wanted: Iterable[str] = (),
        on_step: Callable[[], object] = lambda: None,
    ) -> None:
        """Walks through all positions of a run.

        Args:
            observed: graph that the engine ran.
            run: values of that run.
            loss_scaling: loss scale of that run.
            wanted: names of the weights whose gradients are summed.
            on_step: function that is called after each value of each position.
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
        for position in run.positions:
            self._walk(position)

    def _walk(self, position: Position) -> None:
        numbers, run = self._observed.numbers, self._run
        reference = Float64Reference(
            self._observed.graph, run, numbers, position, self._loss_scaling
        )
        for node, wide in reference.values():
            if node in numbers:
                own = run.read(numbers[node], position)
                if own is not None:
                    is_given = node.op == "placeholder" or is_drawn(node)
                    self._add(node, own, own.double() if is_given else wide)
                self._on_step()
            if node in self._wanted:
                self._add_gradient(node, position, wide)

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

    def _add_gradient(self, node: fx.Node, position: Position, wide: torch.Tensor | None) -> None:
        name, numbers = self._wanted[node], self._observed.numbers
        value = self._run.read(numbers[node], position) if wide is None else wide
        if value is not None:
            total = self.gradients.get(name)
            self.gradients[name] = value.float() if total is None else total.add_(value)

    def operations(self) -> Iterator[OperationNumbers]:
        """Yields the measurements of each value; shares refer to the value's own type."""
        yield from self._of_window(Direction.GIVEN)
        errors: dict[int, float] = {}
        for node, number in self._observed.numbers.items():
            if number in self._sums:
                sums = self._sums[number]
                read = numbers_read(node, self._observed.numbers)
                before = max((errors.get(each, 0.0) for each in read), default=0.0)
                found = _row(self._run.values[number], sums, before)
                errors[number] = found.error or 0.0
                yield found
        yield from self._of_window(Direction.UPDATE)

    def _of_window(self, direction: Direction) -> Iterator[OperationNumbers]:
        """Yields the measurements of values that exist once in a window."""
        observed = set(self._observed.numbers.values())
        for number, value in enumerate(self._run.values):
            if number in observed or value.direction is not direction:
                continue
            tensor = self._run.read(number, FIRST)
            if tensor is not None and tensor.is_floating_point():
                # Inputs and weights are exact; updated weights have no reference to compare with.
                has_shadow = direction is Direction.GIVEN
                sums = _Sums([Magnitudes.of(tensor)], has_shadow=has_shadow)
                yield _row(value, sums, 0.0)


def _row(value: Value, sums: _Sums, before: float) -> OperationNumbers:
    magnitudes = Magnitudes.together(sums.magnitudes)
    found = shares(magnitudes, TypeRange.of(value.dtype))
    at_one = Magnitudes.together(sums.at_one) if sums.at_one else None
    return OperationNumbers(value, magnitudes, *found, _error(sums), before, at_one)


def _error(sums: _Sums) -> float | None:
    if not sums.has_shadow:
        return None
    if not sums.size:
        return math.inf if sums.off else 0.0
    return math.sqrt(sums.off / sums.size)


def _scaled(observed: ObservedGraph) -> set[fx.Node]:
    """Returns the values of the backward pass that are proportional to the loss scale.

    The first operation of the backward pass makes the gradient of the loss, and so holds the scale.
    """
    found: set[fx.Node] = set()
    for node in observed.graph.fx.nodes:
        if node.op == "call_function" and record_of(operation_of(node)).phase is Phase.BACKWARD:
            if not found or any(each in found for each in node.all_input_nodes):
                found.add(node)
    return found
