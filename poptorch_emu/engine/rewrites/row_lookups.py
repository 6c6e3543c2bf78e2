"""Has the rows of embeddings looked up by an operator of ours, which fetches them ahead.

The processor does not guess where single rows lie, so each one is waited for.
"""

from __future__ import annotations

import torch

from poptorch_emu.engine.engine_graph import EngineGraph

_EMBEDDING = torch.ops.poptorch_emu.embedding.default


def fetch_rows_ahead(code: EngineGraph) -> int:
    """Changes the lookups of rows; returns how many."""
    lookups = list(
        code.graph.fx.find_nodes(op="call_function", target=torch.ops.aten.embedding.default)
    )
    for node in lookups:
        node.target = _EMBEDDING
        node.args = node.args[:2]  # The others concern gradients.
        node.kwargs = {}
    return len(lookups)
