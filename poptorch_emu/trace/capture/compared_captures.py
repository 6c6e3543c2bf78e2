"""Comparison of two captures of one model, to show that the next call computes the same."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from poptorch_emu.ir.arguments import is_random
from poptorch_emu.ir.graph import Graph, SourceKind, source_of
from poptorch_emu.ir.mutation import is_mutating, memory_of, written_memory
from poptorch_emu.trace.values.known_values import reads_shape_only

# Returns a text that is equal for equal values of nodes that depend on constants alone; None if the
# value is unknown, which therefore equals no other value.
Describe = Callable[[fx.Node], "str | None"]
_unknown = count()

aten = torch.ops.aten
# Operators whose results have a shape and a type, but no values yet.
_EMPTY = (
    *(aten.empty, aten.empty_like, aten.empty_permuted, aten.empty_strided),
    *(aten.new_empty, aten.new_empty_strided),
)


def shape_of(node: fx.Node) -> str:
    """Returns a text of a value's shape."""
    value = node.meta["val"]
    return str(tuple(value.shape)) if isinstance(value, torch.Tensor) else ""


def computed(
    graph: Graph,
    apart: Collection[str],
    describe: Describe = shape_of,
    results: Iterable[fx.Node | None] = (),
    is_left_out: Callable[[fx.Node], bool] = lambda _: False,
) -> Iterator[tuple[Any, ...]]:
    """Yields texts of the operations that depend on more than constants and some sources.

    Two captures compute the same if they yield the same.

    Args:
        graph: recorded operations.
        apart: names of sources that are treated as constants.
        describe: describes the operands that depend on constants and on these sources alone.
        results: nodes whose values leave the graph; they come last.
        is_left_out: returns whether an operation has no effect on the results.
    """
    ids: dict[fx.Node, Any] = {}
    form = partial(_form, ids, describe)
    num_yielded = 0
    for node in graph.fx.nodes:
        if node.op == "placeholder":
            source = source_of(node)
            if source.kind is not SourceKind.CONSTANT and source.name not in apart:
                ids[node] = str(source)
            continue
        if _is_left_empty(node):
            ids[node] = "empty"
            continue
        depends = not reads_shape_only(node) and any(each in ids for each in node.all_input_nodes)
        if node.op == "output" or not (depends or is_random(node)) or is_left_out(node):
            continue
        num_yielded += 1
        ids[node] = num_yielded
        if is_mutating(node):
            ids |= {each: num_yielded for each in written_memory(node)}
        yield str(node.target), str(map_aggregate((node.args, node.kwargs), form))
    yield tuple(map(form, results))


def _form(ids: Mapping[fx.Node, Any], describe: Describe, value: Any) -> Any:
    """Returns an argument in a form that is equal in both captures."""
    if not isinstance(value, fx.Node):
        return value
    found = ids.get(value), ids.get(memory_of(value))
    if found != (None, None):
        return (*found, shape_of(value))
    text = describe(value)
    return f"unknown value {next(_unknown)}" if text is None else text


def _is_left_empty(node: fx.Node) -> bool:
    if getattr(node.target, "overloadpacket", None) not in _EMPTY:
        return False
    writers = filter(is_mutating, node.graph.nodes)
    return not any(node in written_memory(writer) for writer in writers)


def writes(names: Collection[str], node: fx.Node) -> bool:
    """Returns whether an operation writes one of these buffers."""
    if not is_mutating(node):
        return False
    written = [each for each in written_memory(node) if each.op == "placeholder"]
    return any(source_of(each).name in names for each in written)
