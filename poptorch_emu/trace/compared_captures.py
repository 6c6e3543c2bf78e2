"""Comparison of two captures of one model, to show that the next call computes the same."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from poptorch_emu.ir.graph import Graph, SourceKind, source_of
from poptorch_emu.ir.mutation import is_mutating, memory_of, written_memory
from poptorch_emu.torch_versions import OpOverload
from poptorch_emu.trace.known_values import reads_shape_only

# Returns a text that is equal for equal values of nodes that depend on constants alone.
Describe = Callable[[fx.Node], str]


def computed(
    graph: Graph,
    apart: Collection[str],
    describe: Describe = lambda _: "",
    results: Collection[fx.Node] = (),
) -> Iterator[tuple[Any, ...]]:
    """Yields texts of the operations that depend on more than constants and some sources.

    Two captures compute the same if they yield the same.

    Args:
        graph: recorded operations.
        apart: names of sources that are treated as constants.
        describe: describes the operands that depend on constants and on these sources alone.
        results: nodes whose values leave the graph; they come last.
    """
    ids: dict[fx.Node, int] = {}
    form = partial(_form, ids, describe)
    for node in graph.fx.nodes:
        if node.op == "placeholder":
            source = source_of(node)
            if source.kind is not SourceKind.CONSTANT and source.name not in apart:
                ids[node] = len(ids)
            continue
        is_random = (
            isinstance(node.target, OpOverload)
            and torch.Tag.nondeterministic_seeded in node.target.tags
        )
        depends = not reads_shape_only(node) and any(each in ids for each in node.all_input_nodes)
        if node.op == "output" or not (depends or is_random) or _writes(node, apart):
            continue
        ids[node] = len(ids)
        if is_mutating(node):
            ids |= {each: ids[node] for each in written_memory(node)}
        yield str(node.target), str(map_aggregate((node.args, node.kwargs), form))
    yield tuple(form(node) for node in results)


def _form(ids: Mapping[fx.Node, int], describe: Describe, value: Any) -> Any:
    """Returns an argument in a form that is equal in both captures."""
    if not isinstance(value, fx.Node):
        return value
    result = value.meta["val"]
    shape = tuple(result.shape) if isinstance(result, torch.Tensor) else None
    found = ids.get(value), ids.get(memory_of(value))
    return (*found, shape, describe(value) if found == (None, None) else "")


def _writes(node: fx.Node, names: Collection[str]) -> bool:
    """Returns whether an operation writes one of these buffers."""
    if not is_mutating(node):
        return False
    written = [each for each in written_memory(node) if each.op == "placeholder"]
    return any(source_of(each).name in names for each in written)
