"""Indices that are tensors with one number: `x[t]`, and slices of fixed size, `x[t : t + 4]`.

The size of a slice is stop - start. Both bounds are written as sums of multiples of the graph's
tensors, plus a number (`_Sum`). In the difference the tensors must cancel out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from poptorch_emu.errors import Error, compiler_error
from poptorch_emu.ir.mutation import memory_sharers, shares_memory, written_values
from poptorch_emu.trace.operators import masked_rows
from poptorch_emu.trace.places.source_line import user_source
from poptorch_emu.trace.recording import regions
from poptorch_emu.trace.recording.recorder import IPU, Recorder
from poptorch_emu.trace.values.known_values import ancestors, known_value
from poptorch_emu.trace.values.value_guards import hint
from poptorch_emu.troubleshooting import Topic

aten = torch.ops.aten

# Operators that keep a number but change its type or shape.
_SAME_NUMBER = {
    aten._to_copy.default,
    aten.alias.default,
    aten.clone.default,
    aten.detach.default,
    aten.squeeze.default,
    aten.view.default,
}


def check_step(step: int) -> None:
    """Raises if a slice cannot have the step `step`."""
    if step < 1:
        raise compiler_error(f"Slicing step must be at least 1, not {step}.")


def check_extent(size: int, length: int) -> None:
    """Raises if a slice of `size` positions does not fit an axis of `length`."""
    if size == 0:
        raise compiler_error("The start and end of a slice must be different.")
    if size < 0:
        raise compiler_error(f"Taking a slice of size {size}, with the end less than the start.")
    if size > length:
        raise compiler_error(
            f"The size of the slice ({size}) is larger than the slicing dimension ({length})."
        )


def check_size(size: int, length: int) -> None:
    """Raises if `size` does not divide `length` into slices."""
    check_extent(min(size, length), length)
    if length % size != 0:
        raise compiler_error(
            f"The size of the slice ({size}) must be a factor of the slicing dimension ({length})."
        )


def positions(start: torch.Tensor, size: int, step: int, length: int) -> torch.Tensor:
    """Returns every `step`-th of `size` positions from `start` on, modulo `length`.

    Args:
        start: integer tensor of one element.
        size: number of positions before steps are applied.
        step: distance between selected positions.
        length: length of the axis.
    """
    offsets = torch.arange(0, size, step, device=start.device)
    return (start.reshape(()).to(torch.int64) + offsets) % length


def take(tensor: torch.Tensor, index: Any) -> Any:
    """Returns `tensor[index]`; indices and slice bounds may be tensors on the device (exact).

    Raises:
        Error: the size of a slice depends on data, or does not fit its axis.
    """
    if masked_rows.is_unknown_mask(index):
        return masked_rows.MaskedRows.of(tensor, index)
    items = _items(index)
    if not any(map(_is_dynamic, items)):
        return tensor[index]
    for number, item in enumerate(items):
        if _is_dynamic(item):
            dim, where = _place(tensor, items, number)
            tensor = tensor.index_select(dim, where)
            items[number] = _all_of(item)
    state = regions.current()
    part = state.recorder.find(tensor)
    if part is not None:  # torch.vmap hides tensors from the recorder.
        state.copied_parts[part] = user_source()
    return tensor[tuple(items)]


def put(tensor: torch.Tensor, index: Any, value: Any) -> None:
    """Runs `tensor[index] = value` for every index that `take` supports (exact).

    Raises:
        Error: the size of a slice depends on data, or does not fit its axis.
    """
    if isinstance(value, masked_rows.MaskedRows):
        value.put(tensor, index)
        return
    items = _items(index)
    number = next((number for number, item in enumerate(items) if _is_dynamic(item)), None)
    if number is None:
        tensor[index] = value
        return
    _note_put_back(value)
    dim, where = _place(tensor, items, number)
    part = tensor.index_select(dim, where)
    items[number] = _all_of(items[number])
    put(part, tuple(items), value)
    tensor.index_copy_(dim, where, part)


def check_parts() -> None:
    """Raises if a part from `take` was changed in place, because the part is a copy.

    `x[t : t + 4] += 1` is allowed, because Python assigns the part to the tensor again.
    """
    state = regions.current()
    for graph in (state.recorder.graph, *state.recorder.graph.regions.values()):
        for node in graph.operations:
            for value in written_values(node):
                if value in state.copied_parts:
                    raise _is_copy(state.copied_parts[value], node.meta["record"].source)


@dataclass(frozen=True)
class _Sum:
    """A sum of tensors of the graph with integer factors, and of a constant."""

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


def _items(index: Any) -> list[Any]:
    return list(index) if isinstance(index, tuple) else [index]


def _is_dynamic(item: Any) -> bool:
    """Returns whether an index or a slice's bound is a number that only a run of the model knows.

    A tensor with axes does not count, because PyTorch gathers with it or uses it as a mask.
    """
    if isinstance(item, slice):
        return any(_is_number(bound) for bound in (item.start, item.stop))
    return _is_number(item) and item.dim() == 0 and item.dtype is not torch.uint8


def _is_number(bound: Any) -> bool:
    return (
        isinstance(bound, torch.Tensor)
        and bound.device.type == "ipu"
        and bound.numel() == 1
        and bound.dtype is not torch.bool
        and not bound.is_floating_point()
        and bool(_sum_of(bound).terms)
    )


def _all_of(item: slice | torch.Tensor) -> slice | int:
    """Returns the index that selects all of a part that `item` has already selected."""
    return slice(None) if isinstance(item, slice) else 0


def _place(tensor: torch.Tensor, items: list[Any], number: int) -> tuple[int, torch.Tensor]:
    """Returns the axis and the positions that item `number` of an index selects."""
    item = items[number]
    dim = _axis_of(items, number, tensor)
    if isinstance(item, slice):
        return dim, _positions_of(item, tensor.size(dim))
    position = item.reshape(1).to(torch.int64)
    return dim, torch.where(position < 0, position + tensor.size(dim), position)


def _positions_of(item: slice, length: int) -> torch.Tensor:
    step = 1 if item.step is None else item.step
    if not isinstance(step, int):
        raise compiler_error(f"Slicing step must be a constant, but at {user_source()} it is not.")
    check_step(step)
    start, stop = item.start, item.stop
    if not isinstance(start, torch.Tensor) or stop is None:
        return _read_positions(item, length)
    size = _sum_of(stop).plus(_sum_of(start), -1)
    if size.terms or _are_of_several_times(start, stop):
        return _read_positions(item, length)
    check_size(size.constant, length)
    return positions(start, size.constant, step, length)


def _read_positions(item: slice, length: int) -> torch.Tensor:
    """Returns the positions of a slice whose bounds are known values.

    Raises:
        Error: the value of a bound is unknown.
    """
    start, stop = _read_bound(item.start), _read_bound(item.stop)
    first, last, step = slice(start, stop, item.step).indices(length)
    return torch.arange(first, max(first, last), step, device=IPU)


def _read_bound(bound: torch.Tensor | int | None) -> int | None:
    if not isinstance(bound, torch.Tensor):
        return bound
    value = regions.current().recorder.known.value(bound)
    if value is None:
        raise _size_depends_on_data()
    return int(value)


def _note_put_back(value: Any) -> None:
    """Allows changes of a part, because it is assigned to the tensor again."""
    state = regions.current()
    if isinstance(value, torch.Tensor):
        for node in memory_sharers(state.recorder.find(value)):
            state.copied_parts.pop(node, None)


def _is_copy(taken_at: str, changed_at: str) -> Error:
    return compiler_error(
        f"The slice taken at {taken_at}, with an index that is a tensor, is a copy, but it is "
        f"changed in place at {changed_at}, which would not change the original tensor. Assign to "
        "the index, as in x[t : t + 4] = y or x[t : t + 4] += y; or call clone() on the slice if "
        "x shall not change."
    )


def _size_depends_on_data() -> Error:
    return compiler_error(
        f"The size of a slice depends on data at {user_source()}: its start and stop must differ "
        "by a number that is known while the model is traced, as in x[t : t + 4]. Use that form, "
        f"or poptorch.dynamic_slice(x, dim, start, size, step). {hint()}; "
        f"{Topic.DATA_DEPENDENT_SHAPE}"
    )


def _are_of_several_times(start: torch.Tensor, stop: torch.Tensor | int) -> bool:
    """Returns whether a tensor behind the bounds was changed in place between its uses."""
    recorder = regions.current().recorder
    bounds = [bound for bound in (start, stop) if isinstance(bound, torch.Tensor)]
    needed = set[fx.Node]().union(*(ancestors(recorder.node_of(bound)) for bound in bounds))
    used: set[fx.Node] = set()
    for node in recorder.graph.operations:
        if not used.isdisjoint(written_values(node)):
            return True
        if node in needed and not shares_memory(node):
            used.update(*map(memory_sharers, node.all_input_nodes))
    return False


def _axis_of(items: list[Any], number: int, tensor: torch.Tensor) -> int:
    """Returns the axis of item `number` of an index."""
    before = items[:number]
    if any(item is Ellipsis for item in before):
        return tensor.dim() - sum(map(_num_axes, items[number:]))
    return sum(map(_num_axes, before))


def _num_axes(item: Any) -> int:
    """Returns the number of axes that an item of an index uses."""
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
