"""Finds the strides that an operation relies on if it reads elements by their places in memory.

The strides of a recorded value are those that PyTorch's kernels for the CPU give it. The engine
need not keep to them: it lays images otherwise, joins micro-batches and leaves out copies. So what
such an operation reads is brought into the recorded strides right before it. What asks for some
order only, such as contiguous rows, has a kernel that sees to it (`csrc/ops/memory_order.cpp`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import torch
from torch import fx

from poptorch_emu.errors import compiler_error
from poptorch_emu.ir.arguments import arguments_of, with_arguments
from poptorch_emu.ir.graph import Graph, record_of
from poptorch_emu.ir.operator_traits import traits_of
from poptorch_emu.torch_versions import has_internal_overlap

aten = torch.ops.aten

# Copies the elements of x into new memory with the given strides, unless x has them already.
STRIDED = torch.ops.poptorch_emu.strided.default


def run(graph: Graph) -> Graph:
    """Changes `graph` in place and returns it; a graph that mutates must not come here.

    Raises:
        Error: an operation reads memory that is not that of one value.
    """
    for region in graph.regions.values():
        run(region)
    assumed = [node for node in graph.operations if node.target is STRIDED]
    for node in graph.operations:
        change = _CHANGES.get(node.target)
        if change is not None:
            change(graph, node)
    for node in assumed:
        node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
        graph.fx.erase_node(node)
    return graph


def _read_from_base(graph: Graph, node: fx.Node) -> None:
    """Has `as_strided`, which sees all memory that a view is of, read what has that memory."""
    call = arguments_of(node)
    seen = call.self.meta["val"]
    offset = call.storage_offset
    if offset is None:
        offset = seen.storage_offset()
    base = _laid(graph, node, _base_of(call.self), _reach(call.size, call.stride, offset))
    node.args, node.kwargs = (base, call.size, call.stride, offset), {}


def _write_into(graph: Graph, node: fx.Node) -> None:
    call = arguments_of(node)
    reach = _reach(call.size, call.stride, call.storage_offset or 0)
    base = _laid(graph, node, call.self, reach)
    node.args, node.kwargs = with_arguments(node, self=base), {}


def _view(graph: Graph, node: fx.Node) -> None:
    """Leaves to the view which strides it has: its elements are the same."""
    call = arguments_of(node)
    node.target, node.args, node.kwargs = aten.view.default, (call.self, call.size), {}


def _factorise(graph: Graph, node: fx.Node) -> None:
    """Has the factors be those of the matrix or of its transpose, as the gradient expects."""
    (matrix,) = node.args
    assert isinstance(matrix, fx.Node)
    if not has_internal_overlap(matrix.meta["val"]):
        node.args = (_strided(graph, node, matrix),)


_CHANGES: dict[object, Callable[[Graph, fx.Node], None]] = {
    aten.as_strided.default: _read_from_base,
    aten.as_strided_copy.default: _read_from_base,
    aten.as_strided_scatter.default: _write_into,
    aten._reshape_alias.default: _view,
    aten._linalg_det.default: _factorise,
    aten._linalg_slogdet.default: _factorise,
}


def _base_of(node: fx.Node) -> fx.Node:
    """Returns the value whose memory a value is seen in."""
    while node.op == "call_function" and node.target is not STRIDED:
        is_part = node.target is operator.getitem
        maker = node.args[0] if is_part else node
        assert isinstance(maker, fx.Node)
        if maker.op != "call_function" or not traits_of(maker.target).is_view:
            break
        source = maker.args[0]
        assert isinstance(source, fx.Node)
        if source.meta["val"].dtype != node.meta["val"].dtype:
            break
        node = source
    return node


def _reach(size: Sequence[int], stride: Sequence[int], offset: int) -> int:
    """Returns how many elements of a memory are seen at most, counted from its beginning."""
    if 0 in size:
        return 0
    return 1 + offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))


def _laid(graph: Graph, node: fx.Node, base: fx.Node, reach: int) -> fx.Node:
    """Returns `base` in its strides, for an operation that reads the first `reach` elements."""
    value = base.meta["val"]
    is_whole = _reach(value.shape, value.stride(), 0) == value.numel()
    if value.storage_offset() or not is_whole or reach > value.numel():
        raise compiler_error(
            f"{str(node.target).removesuffix('.default')} at {record_of(node).source} reads "
            f"{reach} elements of memory, but only {value.numel()} are known, of a tensor with "
            f"shape {list(value.shape)} and strides {list(value.stride())}. Build the view by "
            "slices, unfold or an index, or of a copy (clone())."
        )
    return _strided(graph, node, base)


def _strided(graph: Graph, before: fx.Node, node: fx.Node) -> fx.Node:
    value = node.meta["val"]
    with graph.fx.inserting_before(before):
        args = (node, list(value.stride()))
        return graph.add_operation(STRIDED, args, {}, value, record_of(before))
