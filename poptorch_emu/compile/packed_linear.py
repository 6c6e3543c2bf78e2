"""Lets oneDNN compute large linear layers of inference, with weights in its own order.

A weight is put in order once (see `preparation`), after which the product is 4 to 30 % faster than
the one of PyTorch, which copies a part of the weight in each call. The bias is part of the call; a
ReLU behind it is not, since oneDNN's makes 0 of a NaN. The graph decides, whatever the stages and
wherever the weight lives, so that the bits do not depend on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from poptorch_emu.compile import onednn
from poptorch_emu.compile.bias_behind import take_bias_behind
from poptorch_emu.compile.engine_graph import EngineGraph, is_single
from poptorch_emu.schedule.schedule import Port

aten = torch.ops.aten

# Multiplications from which it pays. Measured on one core with AVX-512, rows x outputs x inputs,
# gain over `addmm`: 64 x 256 x 256 0.93, 128 x 256 x 256 1.00, 256 x 256 x 256 1.04, 8 x 768 x 256
# 0.82, 64 x 768 x 256 1.07, 4 x 1000 x 512 0.90, 16 x 1000 x 512 1.30, 1 x 5000 x 512 0.91,
# 4 x 5000 x 512 1.76, 256 x 5000 x 512 1.10. A call takes 12 us more before it computes.
_FEWEST_MULTIPLICATIONS = 2**23
_PRODUCTS = (aten.mm.default, aten.addmm.default)


@dataclass
class _Layer:
    """A linear layer of a graph.

    Attributes:
        product: the operation that multiplies.
        weight: a source, [outputs, inputs].
        bias: what is added in the same operation.
    """

    product: fx.Node
    weight: fx.Node
    bias: fx.Node | None


def pack_layers(code: EngineGraph) -> int:
    """Changes linear layers where that pays; returns how many."""
    if not onednn.IS_AVAILABLE:
        return 0
    packed: dict[tuple[fx.Node, int, Port], fx.Node] = {}
    num_changes = 0
    for product in code.graph.operations:
        layer = _layer(product, code) if product.target in _PRODUCTS else None
        if layer is not None:
            _pack(layer, code, packed)
            num_changes += 1
    return num_changes


def _pack(
    layer: _Layer, code: EngineGraph, packed: dict[tuple[fx.Node, int, Port], fx.Node]
) -> None:
    """Changes one layer; `packed` are the weights that are in order already."""
    product, weight = layer.product, layer.weight
    value = product.meta["val"]
    key = weight, value.shape[0], code.placed.port_of[product]
    if key not in packed:
        packed[key] = code.insert(product, onednn.PACK_LINEAR, key[:2], weight.meta["val"])
    x = product.args[_x_place(product)]
    bias = take_bias_behind(product, code) if layer.bias is None else layer.bias
    result = code.insert(product, onednn.LINEAR, (x, packed[key], bias, "none", [], ""), value)
    product.replace_all_uses_with(result)


def _x_place(product: fx.Node) -> int:
    """Returns the place of the rows among the arguments, which the weight follows."""
    return _PRODUCTS.index(product.target)


def _layer(product: fx.Node, code: EngineGraph) -> _Layer | None:
    x_place = _x_place(product)
    x, transposed = product.args[x_place], product.args[x_place + 1]
    assert isinstance(transposed, fx.Node)
    assert isinstance(x, fx.Node)
    if product.kwargs or transposed.target is not aten.t.default or not is_single(product):
        return None
    weight = transposed.args[0]
    assert isinstance(weight, fx.Node)
    num_multiplications = x.meta["val"].shape[0] * weight.meta["val"].numel()
    if num_multiplications < _FEWEST_MULTIPLICATIONS or not code.is_fixed(weight):
        return None
    layer = _Layer(product, weight, None)
    if product.target is aten.addmm.default:
        bias = product.args[0]
        if not (_is_bias(bias, layer) and code.is_fixed(bias)):
            return None
        layer.bias = bias  # type: ignore[assignment]
    return layer


def _is_bias(node: Any, layer: _Layer) -> bool:
    if not isinstance(node, fx.Node) or not is_single(node):
        return False
    return bool(node.meta["val"].shape == layer.weight.meta["val"].shape[:1])
