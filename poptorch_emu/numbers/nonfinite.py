"""Search for the first value of a run that is not finite.

An infinity on purpose, such as in a mask, does no harm. Therefore a value is reported only if a
loss, an output, a gradient or a weight is not finite at the end. The report names the first NaN or,
without a NaN, the first infinity whose inputs are finite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from poptorch_emu.numbers.engine_run import ObservedGraph
from poptorch_emu.numbers.graph_values import numbers_read
from poptorch_emu.numbers.run import FIRST, Direction, Position, Run, Value
from poptorch_emu.printed.records import Record


@dataclass(frozen=True)
class Found(Record):
    """A value with elements that are not finite.

    Attributes:
        value: description of the value.
        position: (micro-batch, replica) of the value.
        num_nan: number of elements that are NaN.
        num_infinite: number of infinite elements.
        num_elements: number of all elements.
        inputs: (title, largest magnitude) of each input of the operation.
    """

    value: Value
    position: Position
    num_nan: int
    num_infinite: int
    num_elements: int
    inputs: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class FirstNonfinite:
    """The first value of a run that is not finite, and the results that it spoils.

    Attributes:
        first: first value that is not finite; `None` if all results of the window are finite.
        overflow: first infinity with finite inputs, if it comes before `first`.
        reached: titles of the results that are not finite.
    """

    first: Found | None
    overflow: Found | None = None
    reached: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Returns whether any result is not finite."""
        return self.first is not None


def first_nonfinite(observed: ObservedGraph, run: Run) -> FirstNonfinite:
    """Returns the first value of a run that is not finite, if any result is not finite."""
    reached = tuple(dict.fromkeys(_reached(observed, run)))
    if not reached:
        return FirstNonfinite(None)
    overflow: Found | None = None
    for found, is_begin in _found(observed, run):
        if found.num_nan:
            return FirstNonfinite(found, overflow, reached)
        if is_begin and overflow is None:
            overflow = found
    return FirstNonfinite(overflow, None, reached)


def _found(observed: ObservedGraph, run: Run) -> Iterator[tuple[Found, bool]]:
    """Yields values that are not finite, in run order, and whether their inputs are finite."""
    for number, value in enumerate(run.values):
        found = _of(run, number, FIRST) if value.direction is Direction.GIVEN else None
        if found is not None:
            yield found, True
    for position in run.positions:
        for node, number in observed.numbers.items():
            found = _of(run, number, position, numbers_read(node, observed.numbers))
            if found is not None:
                yield found, all(magnitude < torch.inf for _, magnitude in found.inputs)
    for number, value in enumerate(run.values):
        found = _of(run, number, FIRST) if value.direction is Direction.UPDATE else None
        if found is not None:
            yield found, True


def _of(run: Run, number: int, position: Position, inputs: Sequence[int] = ()) -> Found | None:
    tensor = run.read(number, position)
    if tensor is None or not tensor.is_floating_point() or bool(tensor.isfinite().all()):
        return None
    read = [(run.values[each].title, run.read(each, position)) for each in inputs]
    counts = int(tensor.isnan().sum()), int(tensor.isinf().sum()), tensor.numel()
    magnitudes = tuple((title, _largest(value)) for title, value in read if value is not None)
    return Found(run.values[number], position, *counts, magnitudes)


def _largest(tensor: torch.Tensor) -> float:
    if tensor.numel() == 0 or not tensor.is_floating_point():
        return 0.0
    return float(tensor.abs().nan_to_num(torch.inf).max())


def _reached(observed: ObservedGraph, run: Run) -> Iterator[str]:
    """Yields the titles of the window's results that are not finite."""
    ends = {
        observed.numbers[node]: str(sink)
        for sink, node in observed.graph.results
        if node in observed.numbers
    }
    ends |= {n: v.title for n, v in enumerate(run.values) if v.direction is Direction.UPDATE}
    for position in run.positions:
        for number, title in ends.items():
            if _of(run, number, position) is not None:
                yield title
