"""Values that a trace can tell although the model does not run yet: those made of constants only.

`torch.arange(4)[2].item()` is such a value, and what is changed in place by such values alone;
anything that depends on an input, a floating-point buffer, a parameter or random numbers is not. Of
an input only the shape counts where nothing else is read (`zeros_like`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from poptorch_emu.ir.evaluate import evaluate
from poptorch_emu.ir.graph import Graph, SourceKind, source_of
from poptorch_emu.ir.mutation import is_mutating, memory_of, written_memory
from poptorch_emu.ir.operator_traits import traits_of
from poptorch_emu.torch_versions import OpOverload, disable_current_modes
from poptorch_emu.trace.batch_counters import is_counter

aten = torch.ops.aten
ValueOfSource = Callable[[fx.Node], torch.Tensor | None]

# What reads the shape of a tensor, and no value.
_OF_A_SHAPE = frozenset(
    {
        aten.full_like.default,
        aten.new_full.default,
        aten.new_ones.default,
        aten.new_zeros.default,
        aten.ones_like.default,
        aten.zeros_like.default,
    }
)


def known_value(
    graph: Graph, node: fx.Node, value_of: ValueOfSource = lambda _: None
) -> torch.Tensor | None:
    """Returns the value of `node` in the graph as recorded so far, or `None` if it is not known.

    Args:
        graph: what was recorded.
        node: an operation or source of it.
        value_of: tells the values of sources that are no constants, as far as they may be used.
    """
    needed = _sources_of_value(graph, node)
    if any(_is_unknown(each) or _is_counting(each) for each in needed):
        return None
    sources = {each: _value_of_source(graph, each, value_of) for each in needed if _is_source(each)}
    if any(value is None for value in sources.values()):
        return None
    values: dict[fx.Node, Any] = {}
    with disable_current_modes(), torch.no_grad():
        for each in graph.fx.nodes:
            if each not in needed:
                continue
            if _is_source(each):  # A copy: it may be changed in place.
                values[each] = sources[each].clone()
                continue
            if each.target in _OF_A_SHAPE:
                like = each.all_input_nodes[0]
                form = like.meta["val"]
                values.setdefault(like, torch.empty(form.shape, dtype=form.dtype))
            values[each] = evaluate(each, values)
    result: torch.Tensor = values[node]
    return result


def _sources_of_value(graph: Graph, node: fx.Node) -> set[fx.Node]:
    """Returns `node`, what its value depends on, and what changes any of that in place."""
    needed = _read_by(node)
    writers = {each: written_memory(each) for each in graph.operations if is_mutating(each)}
    while True:
        memory = set(map(memory_of, needed))
        touching = [each for each, written in writers.items() if not memory.isdisjoint(written)]
        if not touching:
            return needed
        for each in touching:
            needed.update(_read_by(each))
            del writers[each]


def _read_by(node: fx.Node) -> set[fx.Node]:
    """Returns `node` and what its value depends on, shapes left out."""
    return ancestors(node, lambda each: [] if each.target in _OF_A_SHAPE else each.all_input_nodes)


def ancestors(
    node: fx.Node,
    producers_of: Callable[[fx.Node], list[fx.Node]] = lambda each: each.all_input_nodes,
) -> set[fx.Node]:
    """Returns `node` and everything that its value depends on."""
    found = {node}
    pending = [node]
    while pending:
        for producer in producers_of(pending.pop()):
            if producer not in found:
                found.add(producer)
                pending.append(producer)
    return found


def read_counters(graph: Graph, node: fx.Node) -> list[str]:
    """Returns the names of the counters of batches that a known value depends on."""
    return [source_of(e).name for e in _sources_of_value(graph, node) if is_counter(e)]


def _is_counting(node: fx.Node) -> bool:
    """Returns whether `node` changes a counter, which does so in every micro-batch."""
    return is_mutating(node) and any(map(is_counter, written_memory(node)))


def _is_source(node: fx.Node) -> bool:
    return node.op == "placeholder"


def _value_of_source(graph: Graph, node: fx.Node, value_of: ValueOfSource) -> Any:
    if source_of(node).kind is SourceKind.CONSTANT:
        return graph.constants[source_of(node).name]
    return value_of(node)


def _is_unknown(node: fx.Node) -> bool:
    if not isinstance(node.target, OpOverload):
        return False
    traits = traits_of(node.target)
    is_random = torch.Tag.nondeterministic_seeded in node.target.tags
    has_no_kernel = traits.runs_bodies or traits.crosses_replicas
    return is_random or has_no_kernel or traits.is_foreign
