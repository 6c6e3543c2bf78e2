"""Embeddings: prefetched rows, and gradients that are kept as rows.

The gradient of a table is as large as the table, but a micro-batch fills only a few of its rows. If
only the sum over micro-batches reads the gradient, its rows are added directly to the sum, and no
whole gradient is computed (`keep_gradients_as_rows`). The sum has the same bits either way.

If rows are averaged, all rows of one mean have the same gradient. PyTorch expands the gradient of
the mean to all rows and then divides each row. Dividing first gives the same bits with less work
(`divide_before_expanding`).

The processor cannot predict the position of the next row of a table, so it waits for each row. Our
lookup operator prefetches the rows (`fetch_rows_ahead`).
"""

from __future__ import annotations

import torch
from torch import fx

from poptorch_emu.engine.engine_graph import EngineGraph
from poptorch_emu.engine.rewrites.gradient_sums import lone_gradients
from poptorch_emu.ir.arguments import arguments_of
from poptorch_emu.torch_versions import OpOverload

aten = torch.ops.aten

# The rows of a gradient with the index in the sum to which each one is added, except rows with
# `padding_index`. No segment computes this operator, because the sum reads its arguments.
torch.library.define(
    "poptorch_emu::row_gradient",
    "(Tensor rows, Tensor indices, int num_rows, int padding_index) -> Tensor",
)

ROW_GRADIENT: OpOverload = torch.ops.poptorch_emu.row_gradient.default

_BACKWARD = aten.embedding_dense_backward.default
_LOOKUP = aten.embedding.default
_OUR_LOOKUP = torch.ops.poptorch_emu.embedding.default
_BY_A_NUMBER = (aten.div.Scalar, aten.mul.Scalar)


def keep_gradients_as_rows(code: EngineGraph) -> int:
    """Keeps gradients of tables as rows if only a sum reads them; returns the number changed."""
    gradients = [node for _, node in lone_gradients(code) if _is_of_rows(node)]
    for node in gradients:
        call = arguments_of(node)
        node.target = ROW_GRADIENT
        node.args = (call.grad_output, call.indices, call.num_weights, call.padding_idx)
        node.kwargs = {}
    return len(gradients)


def _is_of_rows(node: fx.Node) -> bool:
    """Returns whether `node` scatters rows to a gradient without scaling them."""
    if node.target is not _BACKWARD:
        return False
    is_known_type = node.meta["val"].dtype in (torch.float32, torch.float16)
    return is_known_type and not arguments_of(node).scale_grad_by_freq


def divide_before_expanding(code: EngineGraph) -> int:
    """Moves divisions of gradients that only embeddings read; returns the number moved."""
    nodes = [node for node in code.graph.fx.nodes if _is_division_of_expanded(node)]
    for node in nodes:
        call = arguments_of(node)
        source, shape = arguments_of(call.self).self, list(node.meta["val"].shape)
        value = source.meta["val"].to(node.meta["val"].dtype)
        divided = code.insert(node, node.target, (source, call.other), value)
        spread = code.insert(node, aten.expand.default, (divided, shape), node.meta["val"])
        node.replace_all_uses_with(spread)
    return len(nodes)


def _is_division_of_expanded(node: fx.Node) -> bool:
    if node.target not in _BY_A_NUMBER:
        return False
    call = arguments_of(node)
    reads_expanded = isinstance(call.self, fx.Node) and call.self.target is aten.expand.default
    return (
        reads_expanded
        and isinstance(call.other, (int, float))
        and all(
            user.target in (_BACKWARD, ROW_GRADIENT) and user.args[0] is node for user in node.users
        )
    )


def fetch_rows_ahead(code: EngineGraph) -> int:
    """Replaces lookups of rows by lookups that prefetch; returns the number replaced."""
    lookups = list(code.graph.fx.find_nodes(op="call_function", target=_LOOKUP))
    for node in lookups:
        call = arguments_of(node)  # Other arguments concern gradients.
        node.target, node.args, node.kwargs = _OUR_LOOKUP, (call.weight, call.indices), {}
    return len(lookups)
