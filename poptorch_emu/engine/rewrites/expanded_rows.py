"""Divides the gradient of a mean before it is spread over what the mean was of.

Where rows of an embedding are averaged, the gradients of all rows of a mean are the same numbers.
PyTorch spreads the mean's gradient over the rows and divides each; divided first, it has the same
bits, and a sum of rows reads it as often as it needs (`csrc/runtime/gradients/row_sum.h`).
"""

from __future__ import annotations

import torch
from torch import fx

from poptorch_emu.engine.engine_graph import EngineGraph

aten = torch.ops.aten

_BY_A_NUMBER = (aten.div.Scalar, aten.mul.Scalar)


def divide_before_expanding(code: EngineGraph) -> int:
    """Changes the divisions of gradients that only embeddings read; returns how many."""
    nodes = [node for node in code.graph.fx.nodes if _is_to_change(node)]
    for node in nodes:
        expanded, number = node.args
        source, shape = expanded.args[0], list(node.meta["val"].shape)
        value = source.meta["val"].to(node.meta["val"].dtype)
        divided = code.insert(node, node.target, (source, number), value)
        spread = code.insert(node, aten.expand.default, (divided, shape), node.meta["val"])
        node.replace_all_uses_with(spread)
    return len(nodes)


def _is_to_change(node: fx.Node) -> bool:
    if node.target not in _BY_A_NUMBER or node.kwargs or not isinstance(node.args[1], (int, float)):
        return False
    expanded = node.args[0]
    reads_expanded = isinstance(expanded, fx.Node) and expanded.target is aten.expand.default
    return reads_expanded and all(
        user.target is aten.embedding_dense_backward.default and user.args[0] is node
        for user in node.users
    )
