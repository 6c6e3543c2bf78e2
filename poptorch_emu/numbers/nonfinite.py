"""Where the numbers of a run begin not to be finite.

An infinity on purpose, such as in a mask, does no harm: something counts as found only if a loss,
an output, a gradient or a weight is not finite in the end. Then it is the first NaN, or without
one the first infinity that is made of finite numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from poptorch_emu.numbers.engine_run import ObservedGraph
from poptorch_emu.numbers.graph_values import numbers_read
from poptorch_emu.numbers.run import FIRST, Direction, Place, Run, Value


@dataclass(frozen=True)
class Found:
    """A value that is not finite.

    Attributes:
        value: where it comes from.
        place: micro-batch and replica.
        num_nan: how many elements are NaN.
        num_infinite: how many are infinite.
        num_elements: how many there are.
        inputs: of the operation, each with its largest magnitude.
    """

    value: Value
    place: Place
    num_nan: int
    num_infinite: int
    num_elements: int
    inputs: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class FirstNonfinite:
    """What is not finite in a run.

    Attributes:
        first: where it begins; `None` if all that leaves the window is finite.
        overflow: the first infinity before it that is made of finite numbers, if there is one.
        reached: names of what is not finite in the end.
    """

    first: Found | None
    overflow: Found | None = None
    reached: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Returns whether something is not finite."""
        return self.first is not None


def first_nonfinite(observed: ObservedGraph, run: Run) -> FirstNonfinite:
    """Returns where the numbers of a run begin not to be finite."""
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
    """Yields what is not finite in the order of the run, and whether its inputs are finite."""
    for number, value in enumerate(run.values):
        found = _of(run, number, FIRST) if value.direction is Direction.GIVEN else None
        if found is not None:
            yield found, True
    for place in run.places:
        for node, number in observed.numbers.items():
            found = _of(run, number, place, numbers_read(node, observed.numbers))
            if found is not None:
                yield found, all(magnitude < torch.inf for _, magnitude in found.inputs)
    for number, value in enumerate(run.values):
        found = _of(run, number, FIRST) if value.direction is Direction.UPDATE else None
        if found is not None:
            yield found, True


def _of(run: Run, number: int, place: Place, inputs: Sequence[int] = ()) -> Found | None:
    tensor = run.read(number, place)
    if tensor is None or not tensor.is_floating_point() or bool(tensor.isfinite().all()):
        return None
    read = [(run.values[each].title, run.read(each, place)) for each in inputs]
    counts = int(tensor.isnan().sum()), int(tensor.isinf().sum()), tensor.numel()
    magnitudes = tuple((title, _largest(value)) for title, value in read if value is not None)
    return Found(run.values[number], place, *counts, magnitudes)


def _largest(tensor: torch.Tensor) -> float:
    if tensor.numel() == 0 or not tensor.is_floating_point():
        return 0.0
    return float(tensor.abs().nan_to_num(torch.inf).max())


def _reached(observed: ObservedGraph, run: Run) -> Iterator[str]:
    """Yields what leaves the window and is not finite."""
    ends = {
        observed.numbers[node]: str(sink)
        for sink, node in observed.graph.results
        if node in observed.numbers
    }
    ends |= {n: v.title for n, v in enumerate(run.values) if v.direction is Direction.UPDATE}
    for place in run.places:
        for number, title in ends.items():
            if _of(run, number, place) is not None:
                yield title
