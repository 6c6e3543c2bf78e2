"""Values that a trace can tell although the model does not run yet: those made of constants only.

`torch.arange(4)[2].item()` is such a value; anything that depends on an input, a floating-point
buffer, a parameter, random numbers or a tensor that is changed in place is not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from poptorch_emu.ir.evaluate import evaluate
from poptorch_emu.ir.graph import Graph, SourceKind, source_of
from poptorch_emu.ir.mutation import is_mutating


def known_value(graph: Graph, node: fx.Node) -> torch.Tensor | None:
    """Returns the value of `node` in the graph as recorded so far, or `None` if it is not known."""
    needed = ancestors(node)
    if any(_is_unknown(each) for each in needed) or _is_written(graph, needed):
        return None
    values: dict[fx.Node, Any] = {}
    with _disable_current_modes(), torch.no_grad():
        for each in graph.fx.nodes:
            if each not in needed:
                continue
            is_constant = each.op == "placeholder"
            values[each] = (
                graph.constants[source_of(each).name] if is_constant else evaluate(each, values)
            )
    result: torch.Tensor = values[node]
    return result


def ancestors(node: fx.Node) -> set[fx.Node]:
    """Returns `node` and everything that its value depends on."""
    found = {node}
    pending = [node]
    while pending:
        for producer in pending.pop().all_input_nodes:
            if producer not in found:
                found.add(producer)
                pending.append(producer)
    return found


def _is_unknown(node: fx.Node) -> bool:
    if node.op == "placeholder":
        return source_of(node).kind is not SourceKind.CONSTANT
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _is_written(graph: Graph, nodes: set[fx.Node]) -> bool:
    """Returns whether an operation changes one of `nodes`, or what shares memory with it."""
    return any(
        node in nodes or not nodes.isdisjoint(ancestors(node))
        for node in graph.operations
        if is_mutating(node)
    )
