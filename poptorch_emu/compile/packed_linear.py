"""Lets oneDNN compute large linear layers of inference, with weights in its own order.

A weight is put in order once (see `preparation`), after which the product is 4 to 30 % faster than
the one of PyTorch, which copies a part of the weight in each call. The bias and a ReLU behind it
are part of the call. The graph decides, whatever the stages and wherever the weight lives, so that
the bits do not depend on them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from poptorch_emu.ir.graph import Graph, SinkKind, SourceKind, record_of, source_of
from poptorch_emu.schedule.partition import Partition
from poptorch_emu.schedule.schedule import Port

aten = torch.ops.aten

# Multiplications from which it pays. Measured on one core with AVX-512, rows x outputs x inputs,
# gain over `addmm`: 64 x 256 x 256 0.93, 128 x 256 x 256 1.00, 256 x 256 x 256 1.04, 8 x 768 x 256
# 0.82, 64 x 768 x 256 1.07, 4 x 1000 x 512 0.90, 16 x 1000 x 512 1.30, 1 x 5000 x 512 0.91,
# 4 x 5000 x 512 1.76, 256 x 5000 x 512 1.10. A call takes 12 us more before it computes.
_FEWEST_MULTIPLICATIONS = 2**23
_VIEWS = (aten.view.default, aten._unsafe_view.default)
_PRODUCTS = (aten.mm.default, aten.addmm.default)


@dataclass
class _Layer:
    """A linear layer of a graph.

    Attributes:
        product: the operation that multiplies.
        weight: a source, [outputs, inputs].
        bias: what is added.
        passed: operations behind it that become part of it, in order.
    """

    product: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    has_relu: bool
    passed: list[fx.Node]


def find_layers(graph: Graph) -> list[_Layer]:
    """Returns the linear layers that are to be changed."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return []
    written = {sink.name for sink in graph.sinks if sink.kind is SinkKind.VARIABLE}
    layers = (_layer(node, written) for node in graph.operations if node.target in _PRODUCTS)
    return [layer for layer in layers if layer is not None]


def pack_layers(graph: Graph, placed: Partition) -> None:
    """Changes a graph that nobody else has: its linear layers, where that pays."""
    packed: dict[tuple[fx.Node, int, Port], fx.Node] = {}
    for layer in find_layers(graph):
        port = placed.port_of[layer.product]
        x = layer.product.args[_x_place(layer.product)]
        rows = layer.product.meta["val"].shape[0]
        key = layer.weight, rows, port
        if key not in packed:
            packed[key] = _insert(
                graph,
                placed,
                layer.product,
                torch.ops.mkldnn._reorder_linear_weight.default,
                (layer.weight, rows),
                layer.weight.meta["val"],
            )
        activation = "relu" if layer.has_relu else "none"
        result = _insert(
            graph,
            placed,
            layer.product,
            torch.ops.mkldnn._linear_pointwise.default,
            (x, packed[key], layer.bias, activation, [], ""),
            layer.product.meta["val"],
        )
        layer.product.replace_all_uses_with(result)
        for operation in layer.passed:
            (value,) = [each for each in operation.all_input_nodes if each is not layer.bias]
            operation.replace_all_uses_with(value)


def _insert(
    graph: Graph, placed: Partition, before: fx.Node, target: Any, args: Any, value: torch.Tensor
) -> fx.Node:
    """Adds an operation where another one is, on its stage."""
    with graph.fx.inserting_before(before):
        node = graph.add_operation(target, args, {}, value, record_of(before))
    placed.port_of[node] = placed.port_of[before]
    return node


def _x_place(product: fx.Node) -> int:
    """Returns the place of the rows among the arguments, which the weight follows."""
    return _PRODUCTS.index(product.target)


def _layer(product: fx.Node, written: set[str]) -> _Layer | None:
    x_place = _x_place(product)
    x, transposed = product.args[x_place], product.args[x_place + 1]
    assert isinstance(transposed, fx.Node)
    assert isinstance(x, fx.Node)
    if product.kwargs or transposed.target is not aten.t.default or not _is_single(product):
        return None
    weight = transposed.args[0]
    assert isinstance(weight, fx.Node)
    num_multiplications = x.meta["val"].shape[0] * weight.meta["val"].numel()
    if num_multiplications < _FEWEST_MULTIPLICATIONS or not _is_fixed(weight, written):
        return None
    layer = _Layer(product, weight, None, has_relu=False, passed=[])
    if product.target is aten.addmm.default:
        bias = product.args[0]
        if not (_is_bias(bias, layer) and _is_fixed(bias, written)):
            return None
        layer.bias = bias  # type: ignore[assignment]
    _add_followers(layer, written)
    return layer


def _add_followers(layer: _Layer, written: set[str]) -> None:
    """Takes the addition of a bias and a ReLU in, as long as nothing else reads the values."""
    value = layer.product
    while len(value.users) == 1 and not layer.has_relu:
        (user,) = value.users
        if user.target in _VIEWS:
            value = user
            continue
        is_addition = user.target is aten.add.Tensor and not user.kwargs
        if is_addition and layer.bias is None:
            (other,) = [each for each in user.args if each is not value] or [None]
            keeps_rows = value.meta["val"].shape[-1:] == layer.product.meta["val"].shape[-1:]
            if not (keeps_rows and _is_bias(other, layer) and _is_fixed(other, written)):
                return
            layer.bias = other  # type: ignore[assignment]
        elif user.target is aten.relu.default:
            layer.has_relu = True
        else:
            return
        layer.passed.append(user)
        value = user


def _is_fixed(node: Any, written: set[str]) -> bool:
    """Returns whether a value is a source that no call changes, which any stage can read."""
    if not isinstance(node, fx.Node) or node.op != "placeholder":
        return False
    source = source_of(node)
    is_variable = source.kind is SourceKind.VARIABLE and source.name not in written
    return is_variable or source.kind is SourceKind.CONSTANT


def _is_bias(node: Any, layer: _Layer) -> bool:
    if not isinstance(node, fx.Node) or not _is_single(node):
        return False
    return bool(node.meta["val"].shape == layer.weight.meta["val"].shape[:1])


def _is_single(node: fx.Node) -> bool:
    value = node.meta["val"]
    return bool(value.dtype == torch.float32 and math.prod(value.shape) > 0)
