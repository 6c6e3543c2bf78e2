"""Has linear layers, and other products of training, made by the kernels that the table names.

PyTorch's product brings a part of the weight into another order in each call. Where a layer reads
its weight for many products, the weight is packed ahead: once before all calls in inference, and
once a window in training. The bias is part of the call, also where the model adds it to a product,
as Keras does; a ReLU behind it is not, since oneDNN's makes 0 of a NaN. Gradients of inputs read
the weight in another order, so that packing it for them, too, would take as much memory once more.
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
    """A product of float32 matrices to which a row may be added.

    Attributes:
        node: the operation.
        left: what is multiplied, [rows, inputs].
        right: with what, [inputs, outputs].
        bias: what is added in the same operation, [outputs].
    """

    node: fx.Node
    left: fx.Node
    right: fx.Node
    bias: fx.Node | None

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Rows, inputs and outputs."""
        return *self.left.meta["val"].shape, self.right.meta["val"].shape[1]


def _products(code: EngineGraph) -> Iterator[_Product]:
    """Yields the products in the order of the graph, which may change one before the next."""
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
    """Makes one operation of each product to which only a bias is added; returns how many."""
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
    """Returns whether a fixed row of the product's type is all that is added to it, and alone."""
    is_lone = getattr(product, "target", None) is aten.mm.default and len(product.users) == 1
    if not (is_lone and is_single(product) and code.is_fixed(bias)):
        return False
    row, rows = bias.meta["val"], product.meta["val"]
    return bool(row.dtype == rows.dtype and row.shape == rows.shape[1:])


def choose_layer_kernels(code: EngineGraph) -> int:
    """Changes linear layers whose weights are worth packing; returns how many."""
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
    """What a layer multiplies with, [outputs, inputs].

    Attributes:
        given: of float32 or float16.
        wide: the same of float32.
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
    if code.config.is_training or not code.is_fixed(right):  # A window converts variables alone.
        return None
    turned = _turned_here(right, product, code)
    return _Weight(turned, turned)


def _turned_here(right: fx.Node, product: _Product, code: EngineGraph) -> fx.Node:
    """Returns a fixed matrix transposed, once for all layers of a stage that read it."""
    port_of = code.placed.port_of
    for user in right.users:
        is_ours = user.target is aten.t.default and user in code.made
        if is_ours and port_of[user] == port_of[product.node]:
            return user
    inputs, outputs = right.meta["val"].shape
    value = torch.empty_strided((outputs, inputs), (1, outputs), device="meta")
    return code.insert(product.node, aten.t.default, (right,), value)


def _narrow(node: fx.Node) -> fx.Node:
    """Returns the float16 value that a node casts to float32, and other nodes themselves."""
    if node.target is aten._to_copy.default and is_half(node.all_input_nodes[0]):
        return node.all_input_nodes[0]
    return node


class _Packer:
    """Replaces layers by those of packed weights, of which it makes each once a stage."""

    def __init__(self, code: EngineGraph) -> None:
        self._code = code
        self._packed: dict[tuple[Any, ...], fx.Node] = {}

    def change(self, layer: _Product, weight: _Weight, row: Row) -> bool:
        """Changes a layer; returns whether its weight could be packed."""
        if row.kernel is Kernel.ONEDNN:
            packed = self._pack(layer, weight, onednn.PACK_LINEAR, weight.wide, layer.sizes[0])
            _replace(layer, onednn.LINEAR, (layer.left, packed, *_onednn_rest(layer)), self._code)
            return True
        # In training another value would be packed for each micro-batch.
        is_training = self._code.config.is_training
        if is_training and source_of(weight.given).kind is not SourceKind.VARIABLE:
            return False
        rows, _, outputs = layer.sizes
        # Only MKL packs a weight for a number of rows.
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
            # What is wished for the layer is not for the weight.
            record = replace(record_of(packing), is_checkpoint=False, recomputed_call=0)
            packing.meta["record"] = record
        return self._packed[key]


def choose_product_kernels(code: EngineGraph) -> int:
    """Changes products that something else makes faster than PyTorch's; returns how many."""
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
    """Has a kernel of the engine's make a product, `aten.mm`."""
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
    # oneDNN takes the weight of a linear layer, [outputs, inputs].
    weight = code.insert(product.node, aten.t.default, (product.right,), right.t())
    _replace(product, onednn.LINEAR, (product.left, weight, *_onednn_rest(product)), code)
    return True


def _onednn_rest(product: _Product) -> tuple[Any, ...]:
    """Returns the other arguments: the bias, and no operation that follows."""
    return product.bias, "none", [], ""


def _replace(product: _Product, target: Any, args: tuple[Any, ...], code: EngineGraph) -> None:
    node = product.node
    node.replace_all_uses_with(code.insert(node, target, args, node.meta["val"]))
