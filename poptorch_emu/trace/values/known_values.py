"""Values that are known before the model runs, because they depend on constants only.

For example, `torch.arange(4)[2].item()` is known, also after changes in place by known values.
Values that depend on an input, a floating-point buffer, a parameter or random numbers are unknown.
Operations such as `zeros_like` only use the shape of an input, so their results are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx

from poptorch_emu.ir.arguments import is_random
from poptorch_emu.ir.evaluate import evaluate
from poptorch_emu.ir.graph import Graph, SourceKind, source_of
from poptorch_emu.ir.mutation import is_mutating, memory_of, written_memory
from poptorch_emu.ir.operator_traits import traits_of
from poptorch_emu.torch_versions import (
    DisableTorchFunction,
    OpOverload,
    disable_current_modes,
)
from poptorch_emu.trace.values.decided_draws import decided
from poptorch_emu.trace.values.integer_state import is_integer_state

aten = torch.ops.aten
ValueOfSource = Callable[[fx.Node], torch.Tensor | None]


def known_value(
    graph: Graph, node: fx.Node, value_of: ValueOfSource = lambda _: None
) -> torch.Tensor | None:
    """Returns the value of `node` in the graph recorded so far; None if it is unknown.

    Args:
        graph: recorded graph.
        node: operation or source of the graph.
        value_of: returns the values of sources other than constants, if they may be used.
    """
    needed = sources_of_value(graph, node)
    if not all(map(is_known_to_hosts, needed)):
        return None
    sources = {each: _value_of_source(graph, each, value_of) for each in needed if _is_source(each)}
    if any(value is None for value in sources.values()):
        return None
    values: dict[fx.Node, Any] = {}
    with DisableTorchFunction(), disable_current_modes(), torch.no_grad():
        for each in graph.fx.nodes:
            if each not in needed:
                continue
            if _is_source(each):  # The graph may change it.
                values[each] = sources[each].clone()
                continue
            if (truth := decided(each)) is not None:
                values[each] = torch.full(each.meta["val"].shape, truth)
                continue
            if reads_shape_only(each):
                like = each.all_input_nodes[0]
                form = like.meta["val"]
                values.setdefault(like, torch.empty(form.shape, dtype=form.dtype))
            values[each] = evaluate(each, values)
    result: torch.Tensor = values[node]
    return result


def sources_of_value(graph: Graph, node: fx.Node) -> set[fx.Node]:
    """Returns `node`, all nodes that its value depends on, and those that change them in place."""
    needed = _read_by(node)
    writers = {
        each: written_memory(each)
        for each in graph.operations
        if is_mutating(each) and not is_write_back(each)
    }
    while True:
        memory = set(map(memory_of, needed))
        touching = [each for each, written in writers.items() if not memory.isdisjoint(written)]
        if not touching:
            return needed
        for each in touching:
            needed.update(_read_by(each))
            del writers[each]


def mark_write_backs(nodes: Iterable[fx.Node]) -> None:
    """Marks operations that follow `forward`. They change no value that `forward` computes."""
    for node in nodes:
        node.meta["is_write_back"] = True


def is_write_back(node: fx.Node) -> bool:
    """Returns whether an operation was marked by `mark_write_backs`."""
    return "is_write_back" in node.meta


def _read_by(node: fx.Node) -> set[fx.Node]:
    """Returns `node` and its producers, without those that matter by their shape only."""
    return ancestors(
        node,
        lambda each: (
            [] if reads_shape_only(each) or decided(each) is not None else each.all_input_nodes
        ),
    )


def ancestors(
    node: fx.Node,
    producers_of: Callable[[fx.Node], list[fx.Node]] = lambda each: each.all_input_nodes,
) -> set[fx.Node]:
    """Returns `node` and all nodes that its value depends on."""
    found = {node}
    pending = [node]
    while pending:
        for producer in producers_of(pending.pop()):
            if producer not in found:
                found.add(producer)
                pending.append(producer)
    return found


def reads_shape_only(node: fx.Node) -> bool:
    """Returns whether an operation reads the shapes of its arguments, and no values."""
    return isinstance(node.target, OpOverload) and traits_of(node.target).reads_shape_only


def read_state(graph: Graph, node: fx.Node) -> list[str]:
    """Returns the names of the buffers of integers that a value depends on."""
    needed = sources_of_value(graph, node)
    return [source_of(each).name for each in needed if is_integer_state(each)]


def changed_state(graph: Graph, node: fx.Node) -> list[str]:
    """Returns the names of the buffers of integers that were changed before `node` reads them."""
    writers = filter(is_mutating, sources_of_value(graph, node))
    changed = (each for writer in writers for each in written_memory(writer))
    return [source_of(each).name for each in changed if is_integer_state(each)]


def _changes_state(node: fx.Node) -> bool:
    """Returns whether `node` changes a buffer of integers, in every micro-batch."""
    return is_mutating(node) and any(map(is_integer_state, written_memory(node)))


def _is_source(node: fx.Node) -> bool:
    return node.op == "placeholder"


def _value_of_source(graph: Graph, node: fx.Node, value_of: ValueOfSource) -> Any:
    if source_of(node).kind is SourceKind.CONSTANT:
        return graph.constants[source_of(node).name]
    return value_of(node)


def is_known_to_hosts(node: fx.Node) -> bool:
    """Returns whether the host could compute `node`, with the same value in every micro-batch."""
    return not _is_unknown(node) and not _changes_state(node)


def _is_unknown(node: fx.Node) -> bool:
    if not isinstance(node.target, OpOverload):
        return False
    traits = traits_of(node.target)
    has_no_kernel = traits.runs_bodies or traits.crosses_replicas
    return is_random(node) or has_no_kernel or traits.is_foreign
