"""Computes operations at compile time that depend on no input, variable or random number."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from poptorch_emu.ir.arguments import is_random
from poptorch_emu.ir.evaluate import evaluate
from poptorch_emu.ir.graph import Graph, Source, SourceKind, record_of, source_of, tensors_of
from poptorch_emu.passes.simplify import remove_dead

# Larger constants are computed in each run, because a folded one is kept as long as the program.
_MAX_CONSTANT_BYTES = 16 * 2**20


def run(graph: Graph) -> Graph:
    """Folds constants of `graph` in place and returns it."""
    known: dict[fx.Node, Any] = {
        node: graph.constants[source_of(node).name]
        for node in graph.sources
        if source_of(node).kind is SourceKind.CONSTANT
    }
    for node in [node for node in graph.fx.nodes if node.op == "call_function"]:
        if _is_foldable(node, known):
            known[node] = evaluate(node, known)
    for node, value in known.items():
        is_needed = any(user not in known for user in node.users)
        if node.op == "call_function" and is_needed and isinstance(value, torch.Tensor):
            _replace(graph, node, value)
    remove_dead(graph)
    return graph


def _is_foldable(node: fx.Node, known: dict[fx.Node, Any]) -> bool:
    if any(producer not in known for producer in node.all_input_nodes):
        return False
    if node.target is operator.getitem:
        return True
    # Operators that are not ATen's may do more than return a value.
    if is_random(node) or node.target.namespace != "aten":  # type: ignore[union-attr]
        return False
    return sum(value.nbytes for value in tensors_of([node])) <= _MAX_CONSTANT_BYTES


def _replace(graph: Graph, node: fx.Node, value: torch.Tensor) -> None:
    name = f"folded_{node.name}"
    graph.constants[name] = value.contiguous()
    source = graph.add_source(Source(SourceKind.CONSTANT, name), node.meta["val"], record_of(node))
    node.replace_all_uses_with(source)
