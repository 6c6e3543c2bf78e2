"""Has small products of training, such as gradients of a layer's input, made by a kernel of ours.

To ask PyTorch's library for a small product takes longer than to make it. The sizes decide
(`csrc/numerics/small_product.h`), whatever the stages. Gradients of weights have an operator of
their own, and so do layers with packed weights.
"""

from __future__ import annotations

import torch

from poptorch_emu.compile.engine_graph import EngineGraph, is_single

_PRODUCT = torch.ops.poptorch_emu.product.default

# No product with more of them is small; the operator looks closer.
_MOST_MULTIPLICATIONS = 2**21


def use_small_products(code: EngineGraph) -> int:
    """Changes products that may be small; returns how many."""
    num_changes = 0
    for node in code.graph.fx.find_nodes(op="call_function", target=torch.ops.aten.mm.default):
        depth = node.args[0].meta["val"].shape[1]
        if is_single(node) and depth * node.meta["val"].numel() <= _MOST_MULTIPLICATIONS:
            node.target = _PRODUCT
            num_changes += 1
    return num_changes
