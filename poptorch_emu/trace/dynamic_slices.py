"""Slices of a fixed size that begin where a tensor says: `x[t : t + 4]`.

The size is what remains of stop - start: both bounds are written as sums of tensors of the graph
times numbers, plus a number (`_Sum`), and the tensors must cancel out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from poptorch_emu.errors import Error, compiler_error
from poptorch_emu.ir.mutation import written_values
from poptorch_emu.trace import regions
from poptorch_emu.trace.known_values import ancestors, known_value
from poptorch_emu.trace.recorder import Recorder
from poptorch_emu.trace.source_line import user_source

aten = torch.ops.aten

# What gives the number it is given another type or shape.
_SAME_NUMBER = {
    aten._to_copy.default,
    aten.alias.default,
    aten.clone.default,
    aten.detach.default,
    aten.squeeze.default,
    aten.view.default,
}


def check_step(step: int) -> None:
    """Raises unless a slice can take every `step`-th position."""
    if step < 1:
        raise compiler_error(f"Slicing step must be at least 1, not {step}.")


def check_size(size: int, length: int) -> None:
    """Raises unless a slice of `size` positions fits an axis of `length`."""
    if size == 0:
        raise compiler_error("The start and end of a slice must be different.")
    if size < 0:
        raise compiler_error(f"Taking a slice of size {size}, with the end less than the start.")
    if length % size != 0:
        raise compiler_error(
            f"The size of the slice ({size}) must be a factor of the slicing dimension ({length})."
        )


def positions(start: torch.Tensor, size: int, step: int, length: int) -> torch.Tensor:
    """Returns every `step`-th of `size` positions from `start` on; after the last comes the first.

    Args:
        start: integer tensor of one element.
        size: extent of the slice before steps are taken.
        step: distance of the positions taken.
        length: of the axis.
    """
    offsets = torch.arange(0, size, step, device=start.device)
    return (start.reshape(()).to(torch.int64) + offsets) % length


def take(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    """Returns `tensor[index]`; bounds of slices may be tensors on the device (exact).

    Raises:
        Error: the size of a slice depends on data, or it does not fit its axis.
    """
    items = list(index) if isinstance(index, tuple) else [index]
    for number, item in enumerate(items):
        if _is_dynamic(item):
            dim = _axis_of(items, number, tensor)
            tensor = _take_slice(tensor, dim, item)
            items[number] = slice(None)
    return tensor[tuple(items)] if isinstance(index, tuple) else tensor[items[0]]


def put(tensor: torch.Tensor, index: Any, value: Any) -> None:
    """Does `tensor[index] = value`; refuses slices whose bounds are tensors on the device."""
    if any(map(_is_dynamic, index if isinstance(index, tuple) else (index,))):
        raise compiler_error(
            f"A slice that begins where a tensor says is assigned to at {user_source()}. Use "
            "tensor = poptorch.dynamic_update(tensor, value, dim, start, size)."
        )
    tensor[index] = value


@dataclass(frozen=True)
class _Sum:
    """A number: tensors of the graph, each so many times, and a constant."""

    constant: int = 0
    terms: Counter[fx.Node] = field(default_factory=Counter)

    def plus(self, other: _Sum, factor: int = 1) -> _Sum:
        terms = Counter(self.terms)
        for node, count in other.terms.items():
            terms[node] += factor * count
        return _Sum(
            self.constant + factor * other.constant,
            Counter({node: count for node, count in terms.items() if count}),
        )


def _is_dynamic(item: Any) -> bool:
    """Returns whether a bound of a slice is only known when the model runs."""
    return isinstance(item, slice) and any(
        isinstance(bound, torch.Tensor)
        and bound.device.type == "ipu"
        and bound.numel() == 1
        and not bound.is_floating_point()
        and _sum_of(bound).terms
        for bound in (item.start, item.stop)
    )


def _take_slice(tensor: torch.Tensor, dim: int, item: slice) -> torch.Tensor:
    length = tensor.size(dim)
    step = 1 if item.step is None else item.step
    if not isinstance(step, int):
        raise compiler_error(f"Slicing step must be a constant, but at {user_source()} it is not.")
    check_step(step)
    start, stop = item.start, item.stop
    if not isinstance(start, torch.Tensor) or stop is None:
        raise _size_depends_on_data()
    size = _sum_of(stop).plus(_sum_of(start), -1)
    if size.terms or _is_changed(start) or _is_changed(stop):
        raise _size_depends_on_data()
    check_size(size.constant, length)
    return tensor.index_select(dim, positions(start, size.constant, step, length))


def _size_depends_on_data() -> Error:
    return compiler_error(
        f"The size of a slice depends on data at {user_source()}: its start and stop must differ "
        "by a number that is known while the model is traced, as in x[t : t + 4]. Use that form, "
        "or poptorch.dynamic_slice(x, dim, start, size, step)."
    )


def _is_changed(bound: torch.Tensor | int) -> bool:
    """Returns whether what makes `bound` was changed in place: its sum is of several times."""
    if not isinstance(bound, torch.Tensor):
        return False
    recorder = regions.current().recorder
    needed = ancestors(recorder.node_of(bound))
    return any(
        value in needed for node in recorder.graph.operations for value in written_values(node)
    )


def _axis_of(items: list[Any], number: int, tensor: torch.Tensor) -> int:
    """Returns the axis that item `number` of an index is for."""
    before = items[:number]
    if any(item is Ellipsis for item in before):
        return tensor.dim() - sum(map(_num_axes, items[number:]))
    return sum(map(_num_axes, before))


def _num_axes(item: Any) -> int:
    """Returns how many axes an item of an index takes."""
    if item is None or isinstance(item, bool):
        return 0
    if isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8):
        return item.dim()
    return 1


def _sum_of(bound: torch.Tensor | int) -> _Sum:
    if not isinstance(bound, torch.Tensor):
        return _Sum(bound)
    recorder = regions.current().recorder
    return _sum_of_node(recorder, recorder.node_of(bound))


def _sum_of_node(recorder: Recorder, value: Any) -> _Sum:
    if not isinstance(value, fx.Node):
        return _Sum(int(value))
    if value.target in _SAME_NUMBER:
        return _sum_of_node(recorder, value.args[0])
    name = getattr(value.target, "overloadpacket", None)
    if name in (aten.add, aten.sub):
        left, right = (_sum_of_node(recorder, argument) for argument in value.args[:2])
        alpha = value.kwargs.get("alpha", 1)
        assert isinstance(alpha, int), "sums of integers have integer factors"
        return left.plus(right, alpha if name is aten.add else -alpha)
    if name is aten.mul:
        left, right = (_sum_of_node(recorder, argument) for argument in value.args[:2])
        number, other = (left, right) if not left.terms else (right, left)
        if not number.terms:
            return _Sum().plus(other, number.constant)
    known = known_value(recorder.graph, value)
    if known is not None:
        return _Sum(int(known))
    return _Sum(terms=Counter([value]))
