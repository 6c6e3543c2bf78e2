"""Replaces linear layers, and other products of training, by the kernels of the table.

PyTorch's product reorders parts of the weight in each call. If a layer reads its weight for many
products, the weight is packed in advance: once before all calls in inference, and once in each
window in training. The bias is part of the call, also if the model adds it after a product, as
Keras does. A ReLU stays a separate operation, because oneDNN's ReLU turns NaN into 0. Gradients of
inputs read the weight in another order. They use no packed weight, since a second packed copy would
double the memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import torch
from torch import fx

from poptorch_emu.engine import onednn
from poptorch_emu.engine.engine_graph import EngineGraph, is_single
from poptorch_emu.engine.product_kernels import Kernel, Role, Row, choose
from poptorch_emu.ir.arguments import arguments_of
from poptorch_emu.ir.graph import SourceKind, record_of, source_of
from poptorch_emu.passes.simplify import remove_dead
from poptorch_emu.passes.widening import is_half
from poptorch_emu.torch_versions import OpOverload

aten = torch.ops.aten

PRODUCT: OpOverload = torch.ops.poptorch_emu.product.default
_PACK = torch.ops.poptorch_emu.pack_weight.default
_PACKED_LINEAR = torch.ops.poptorch_emu.packed_linear.default


@dataclass(frozen=True)
class _Product:
    """A product of float32 matrices, and an optional row to add.

    Attributes:
        node: operation of the graph.
        left: left matrix, [rows, inputs].
        right: right matrix, [inputs, outputs].
        bias: row that the same operation adds, [outputs]; `None` if there is no bias.
    """

    node: fx.Node
    left: fx.Node
    right: fx.Node
    bias: fx.Node | None

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Numbers of rows, inputs and outputs."""
        return *self.left.meta["val"].shape, self.right.meta["val"].shape[1]


def _products(code: EngineGraph) -> Iterator[_Product]:
    """Yields products in graph order; the caller may replace each one before the next is read."""
    for node in code.graph.operations:
        product = _product(node)
        if product is not None:
            yield product


def _product(node: fx.Node) -> _Product | None:
    if node.target not in (aten.mm.default, aten.addmm.default) or not is_single(node):
        return None
    arguments = arguments_of(node)
    if node.target is aten.mm.default:
        return _Product(node, arguments.self, arguments.mat2, None)
    is_scaled = arguments.alpha != 1 or arguments.beta != 1
    if is_scaled or arguments.self.meta["val"].shape != node.meta["val"].shape[1:]:
        return None
    return _Product(node, arguments.mat1, arguments.mat2, arguments.self)


def add_biases_in_products(code: EngineGraph) -> int:
    """Merges a product and the addition of its bias; returns the number of merged products."""
    num_changes = 0
    for total in code.graph.fx.find_nodes(op="call_function", target=aten.add.Tensor):
        arguments = arguments_of(total)
        for product, bias in permutations((arguments.self, arguments.other)):
            if arguments.alpha == 1 and _is_bias_of(bias, product, code):
                matrices = arguments_of(product)
                args = (bias, matrices.self, matrices.mat2)
                value = total.meta["val"]
                total.replace_all_uses_with(code.insert(product, aten.addmm.default, args, value))
                num_changes += 1
                break
    remove_dead(code.graph)
    return num_changes


def _is_bias_of(bias: Any, product: Any, code: EngineGraph) -> bool:
    """Returns whether `product` is read only once and `bias` is a fixed row of its type."""
    is_lone = getattr(product, "target", None) is aten.mm.default and len(product.users) == 1
    if not (is_lone and is_single(product) and code.is_fixed(bias)):
        return False
    row, rows = bias.meta["val"], product.meta["val"]
    return bool(row.dtype == rows.dtype and row.shape == rows.shape[1:])


def choose_layer_kernels(code: EngineGraph) -> int:
    """Replaces linear layers whose weights are worth packing; returns the number replaced."""
    packer, is_training = _Packer(code), code.config.is_training
    role = Role.LAYER if is_training else Role.FIXED_LAYER
    num_products = code.config.gradient_accumulation // code.joined if is_training else 1
    num_changes = 0
    for product in _products(code):
        row = choose(role, *product.sizes, num_products=num_products)
        weight = None if row is None else _weight_of(product, code)
        if row is not None and weight is not None:
            num_changes += packer.change(product, weight, row)
    return num_changes


@dataclass(frozen=True)
class _Weight:
    """The weight of a linear layer, [outputs, inputs].

    Attributes:
        given: weight as the model stores it, in float32 or float16.
        wide: the same weight in float32.
    """

    given: fx.Node
    wide: fx.Node


def _weight_of(product: _Product, code: EngineGraph) -> _Weight | None:
    if product.bias is not None and not code.is_fixed(_narrow(product.bias)):
        return None
    right = product.right
    if right.target is aten.t.default:
        wide = arguments_of(right).self
        given = _narrow(wide)
        return _Weight(given, wide) if code.is_fixed(given) else None
    if code.config.is_training or not code.is_fixed(right):  # Training packs variables only.
        return None
    turned = _turned_here(right, product, code)
    return _Weight(turned, turned)


def _turned_here(right: fx.Node, product: _Product, code: EngineGraph) -> fx.Node:
    """Returns the transpose of a fixed matrix, shared by all layers of a stage that read it."""
    port_of = code.placed.port_of
    for user in right.users:
        is_ours = user.target is aten.t.default and user in code.made
        if is_ours and port_of[user] == port_of[product.node]:
            return user
    inputs, outputs = right.meta["val"].shape
    value = torch.empty_strided((outputs, inputs), (1, outputs), device="meta")
    return code.insert(product.node, aten.t.default, (right,), value)


def _narrow(node: fx.Node) -> fx.Node:
    """Returns the float16 value that a node casts to float32; any other node itself."""
    if node.target is aten._to_copy.default and is_half(node.all_input_nodes[0]):
        return node.all_input_nodes[0]
    return node


class _Packer:
    """Replaces layers by layers with packed weights; packs each weight once on each stage."""

    def __init__(self, code: EngineGraph) -> None:
        self._code = code
        self._packed: dict[tuple[Any, ...], fx.Node] = {}

    def change(self, layer: _Product, weight: _Weight, row: Row) -> bool:
        """Replaces a layer; returns whether its weight could be packed."""
        if row.kernel is Kernel.ONEDNN:
            packed = self._pack(layer, weight, onednn.PACK_LINEAR, weight.wide, layer.sizes[0])
            _replace(layer, onednn.LINEAR, (layer.left, packed, *_onednn_rest(layer)), self._code)
            return True
        # In training, a value other than a variable would be packed again for each micro-batch.
        is_training = self._code.config.is_training
        if is_training and source_of(weight.given).kind is not SourceKind.VARIABLE:
            return False
        rows, _, outputs = layer.sizes
        # Only MKL packs a weight for a fixed number of rows.
        packed_rows = rows if row.kernel is Kernel.LIBRARY else 1
        numbers = row.kernel.number, packed_rows
        packed = self._pack(layer, weight, _PACK, weight.given, *numbers)
        args = (layer.left, packed, layer.bias, outputs, row.kernel.number)
        _replace(layer, _PACKED_LINEAR, args, self._code)
        return True

    def _pack(self, layer: _Product, weight: _Weight, target: Any, *args: Any) -> fx.Node:
        key = target, args, self._code.placed.port_of[layer.node]
        if key not in self._packed:
            value = weight.wide.meta["val"]
            packing = self._packed[key] = self._code.insert(layer.node, target, args, value)
            # Checkpoint and recomputation marks of the layer do not apply to its packed weight.
            record = replace(record_of(packing), is_checkpoint=False, recomputed_call=0)
            packing.meta["record"] = record
        return self._packed[key]


def choose_product_kernels(code: EngineGraph) -> int:
    """Replaces products if another kernel is faster than PyTorch's; returns their number."""
    num_changes = 0
    for product in _products(code):
        row = choose(Role.PRODUCT, *product.sizes)
        if row is None:
            continue
        right = product.right.meta["val"]
        if row.kernel is Kernel.ONEDNN:
            num_changes += _use_onednn(product, code)
        elif row.kernel is Kernel.SMALL or right.stride(1) == 1:
            _use_kernel(product, row.kernel)
            num_changes += 1
    return num_changes


def use_kernel(node: fx.Node, kernel: Kernel) -> None:
    """Lets a kernel of the engine compute the product `node`, an `aten.mm`."""
    product = _product(node)
    assert product is not None
    _use_kernel(product, kernel)


def _use_kernel(product: _Product, kernel: Kernel) -> None:
    bias = () if product.bias is None else (product.bias,)
    product.node.target, product.node.kwargs = PRODUCT, {}
    product.node.args = (product.left, product.right, kernel.number, *bias)


def _use_onednn(product: _Product, code: EngineGraph) -> bool:
    left, right = product.left.meta["val"], product.right.meta["val"]
    if not (left.is_contiguous() and (right.is_contiguous() or right.t().is_contiguous())):
        return False
    # oneDNN expects the weight of a linear layer, [outputs, inputs].
    weight = code.insert(product.node, aten.t.default, (product.right,), right.t())
    _replace(product, onednn.LINEAR, (product.left, weight, *_onednn_rest(product)), code)
    return True


def _onednn_rest(product: _Product) -> tuple[Any, ...]:
    """Returns the remaining arguments: the bias, and no operation fused after the product."""
    return product.bias, "none", [], ""


def _replace(product: _Product, target: Any, args: tuple[Any, ...], code: EngineGraph) -> None:
    node = product.node
    node.replace_all_uses_with(code.insert(node, target, args, node.meta["val"]))
