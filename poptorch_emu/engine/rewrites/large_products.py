"""Lets oneDNN compute large products of training where it is faster than PyTorch's library.

On AMD's processors with AVX-512, it is. A bias that is added to a view of a product, as attention
layers do it, goes with the product. The graph and the processor decide, whatever the stages, so
that the bits do not depend on them. The gradients of weights stay with the kernels that add them to
their sums inside the product.
"""

from __future__ import annotations

import torch
from torch import fx

from poptorch_emu.engine import onednn
from poptorch_emu.engine.engine_graph import EngineGraph, is_single
from poptorch_emu.engine.rewrites.bias_behind import take_bias_behind
from poptorch_emu.environment import processor

aten = torch.ops.aten

# Multiplications from which it pays. Measured on one core of an AMD EPYC with AVX-512, rows x
# inputs x outputs, speed over MKL's of a linear layer and of the gradient of its input: 128 x 256 x
# 256 0.95 and 1.04, 256 x 128 x 512 1.02 and 1.06, 256 x 512 x 512 1.07 and 1.06, 256 x 512 x 2048
# 1.18 and 1.08, 256 x 2048 x 512 1.19 and 1.12, 1024 x 256 x 1024 1.16 and 1.22. On an Intel Xeon
# with AVX-512 all of these but the first ran at 0.93 to 1.05.
_FEWEST_MULTIPLICATIONS = 2**24


def is_onednn_faster() -> bool:
    """Returns whether this processor runs oneDNN's products faster than those of PyTorch."""
    has_wide_vectors = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return onednn.IS_AVAILABLE and has_wide_vectors and processor("vendor_id") == "AuthenticAMD"


def move_large_products(code: EngineGraph) -> int:
    """Changes products where that pays; returns how many."""
    if not is_onednn_faster():
        return 0
    products = [node for node in code.graph.operations if _is_large(node)]
    for product in products:
        _move(product, code)
    return len(products)


def _factors(product: fx.Node) -> list[fx.Node]:
    """Returns the two matrices, without what is added to their product."""
    return [each for each in product.args if isinstance(each, fx.Node)][-2:]


def _is_large(node: fx.Node) -> bool:
    is_product = node.target is aten.mm.default
    is_product |= node.target is aten.addmm.default and _has_bias(node)
    if not is_product or not is_single(node):
        return False
    left, right = (factor.meta["val"] for factor in _factors(node))
    return bool(
        left.shape[0] * right.numel() >= _FEWEST_MULTIPLICATIONS
        and left.is_contiguous()
        and (right.is_contiguous() or right.t().is_contiguous())
    )


def _has_bias(sum_and_product: fx.Node) -> bool:
    """Returns whether a row is added to the product, and neither has a factor."""
    added, result = sum_and_product.args[0], sum_and_product.meta["val"]
    assert isinstance(added, fx.Node)
    return not sum_and_product.kwargs and added.meta["val"].shape == result.shape[1:]


def _move(product: fx.Node, code: EngineGraph) -> None:
    left, right = _factors(product)
    bias = product.args[0] if product.target is aten.addmm.default else None
    if bias is None:
        bias = take_bias_behind(product, code)
    # oneDNN takes the weight of a linear layer, (outputs, inputs).
    weight = code.insert(product, aten.t.default, (right,), right.meta["val"].t())
    value = product.meta["val"]
    result = code.insert(product, onednn.LINEAR, (left, weight, bias, "none", [], ""), value)
    product.replace_all_uses_with(result)
