"""Finds the linear layers of a graph: products with a weight that no call changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx

from poptorch_emu.engine.engine_graph import EngineGraph, is_single
from poptorch_emu.passes.widening import is_half

aten = torch.ops.aten

_IS_SMALL = torch.ops.poptorch_emu.is_small_layer
_IS_BY_PANELS = torch.ops.poptorch_emu.is_by_panels
_PRODUCTS = (aten.mm.default, aten.addmm.default)


@dataclass(frozen=True)
class LinearLayer:
    """A linear layer of a graph, whose product is one of float32.

    Attributes:
        product: the operation that multiplies.
        weight: a source, [outputs, inputs], of float32 or float16.
        wide_weight: the same in float32.
        bias: what is added in the same operation, [outputs].
    """

    product: fx.Node
    weight: fx.Node
    wide_weight: fx.Node
    bias: fx.Node | None

    @property
    def x(self) -> fx.Node:
        """What is multiplied with the weight now, [rows, inputs]."""
        x = self.product.args[-2]
        assert isinstance(x, fx.Node)
        return x

    @property
    def num_rows(self) -> int:
        """How many rows are multiplied."""
        return int(self.x.meta["val"].shape[0])

    @property
    def num_multiplications(self) -> int:
        """How many there are of numbers."""
        return self.num_rows * int(self.weight.meta["val"].numel())

    @property
    def is_small(self) -> bool:
        """Whether the engine's kernel for small products makes it, with a packed weight."""
        num_outputs, num_inputs = self.weight.meta["val"].shape
        return bool(_IS_SMALL(self.num_rows, num_inputs, num_outputs))

    @property
    def is_by_panels(self) -> bool:
        """Whether the engine's kernel for large products makes it, with a packed weight."""
        num_outputs, num_inputs = self.weight.meta["val"].shape
        return bool(_IS_BY_PANELS(self.num_rows, num_inputs, num_outputs))


def linear_layers(code: EngineGraph) -> list[LinearLayer]:
    """Returns the linear layers in the order of the graph."""
    layers = (_linear_layer(node, code) for node in code.graph.operations)
    return [layer for layer in layers if layer is not None]


def _linear_layer(product: fx.Node, code: EngineGraph) -> LinearLayer | None:
    if product.target not in _PRODUCTS or product.kwargs or not is_single(product):
        return None
    *added, _, transposed = product.args
    assert isinstance(transposed, fx.Node)
    if transposed.target is not aten.t.default:
        return None
    wide_weight = transposed.args[0]
    assert isinstance(wide_weight, fx.Node)
    weight = _narrow(wide_weight)
    if not code.is_fixed(weight):
        return None
    (bias,) = added or [None]
    if bias is not None and not (_is_bias(bias, weight) and code.is_fixed(_narrow(bias))):
        return None
    return LinearLayer(product, weight, wide_weight, bias)  # type: ignore[arg-type]


def _narrow(node: Any) -> fx.Node:
    """Returns the float16 value that a node casts to float32, and other nodes themselves."""
    if node.target is aten._to_copy.default and is_half(node.all_input_nodes[0]):
        return cast(fx.Node, node.args[0])
    return cast(fx.Node, node)


def _is_bias(node: Any, weight: fx.Node) -> bool:
    if not isinstance(node, fx.Node) or not is_single(node):
        return False
    return bool(node.meta["val"].shape == weight.meta["val"].shape[:1])
