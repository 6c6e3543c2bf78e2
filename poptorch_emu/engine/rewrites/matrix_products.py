"""Has products of training, such as gradients of a layer's input, made by kernels of ours.

To ask PyTorch's library for a small product takes longer than to make it, and large ones are slower
by it on some processors. The sizes and the processor decide (`csrc/ops/product.cpp`), whatever the
stages. Gradients of weights have an operator of their own, and so do layers with packed weights.
"""

from __future__ import annotations

import torch

from poptorch_emu.engine.engine_graph import EngineGraph, is_single

_PRODUCT = torch.ops.poptorch_emu.product.default
_IS_BY_PANELS = torch.ops.poptorch_emu.is_by_panels

# No product with more of them is small; the operator looks closer.
_MOST_MULTIPLICATIONS_OF_SMALL = 2**21


def use_our_products(code: EngineGraph) -> int:
    """Changes products that a kernel of ours may make; returns how many."""
    num_changes = 0
    for node in code.graph.fx.find_nodes(op="call_function", target=torch.ops.aten.mm.default):
        rows, depth = node.args[0].meta["val"].shape
        columns = node.meta["val"].shape[1]
        is_ours = rows * depth * columns <= _MOST_MULTIPLICATIONS_OF_SMALL
        is_ours |= _IS_BY_PANELS(rows, depth, columns)
        if is_single(node) and is_ours:
            node.target = _PRODUCT
            num_changes += 1
    return num_changes
