"""The matrix products and convolutions in an operation of a graph, for the model of the machine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from poptorch_emu.ir.graph import tensors_of
from poptorch_emu.machine.costs.code import Family
from poptorch_emu.machine.costs.product import Product
from poptorch_emu.machine.costs.vertices import Precision, Window
from poptorch_emu.plan.operations.operation_family import (
    bare_name,
    family_of,
    item_bytes,
    operands_of,
    query_and_key,
    recurrent_operands,
)


def products_of(node: fx.Node, has_half_sums: bool) -> list[Product]:
    """Returns the products that an operation computes, in order.

    Args:
        node: any operation.
        has_half_sums: whether products of float16 numbers are summed in float16.
    """
    family = family_of(node)
    makers = {
        Family.PRODUCT: _matrix_products,
        Family.CONVOLUTION: _convolutions,
        Family.ATTENTION: _attention,
        Family.RECURRENT: _recurrent,
    }
    if family not in makers:
        return []
    numbers = [v for v in tensors_of(node.all_input_nodes) if v.is_floating_point()]
    precision = Precision.FLOAT
    if numbers and all(item_bytes(node, value) == torch.half.itemsize for value in numbers):
        precision = Precision.HALF if has_half_sums else Precision.MIXED
    found = makers[family](node, precision)
    return [
        product
        for product in found
        if product.rows and product.reduced and product.columns and product.count
    ]


def _matrix_products(node: fx.Node, precision: Precision) -> Iterator[Product]:
    left, right = operands_of(node)[-2:]
    yield Product(
        left.shape[-2] if left.dim() > 1 else 1,
        left.shape[-1],
        right.shape[-1] if right.dim() > 1 else 1,
        precision,
        math.prod(left.shape[:-2]),
    )


def _convolutions(node: fx.Node, precision: Precision) -> Iterator[Product]:
    """Yields the forward convolution, or those gradients of input and weight that are requested."""
    arguments: Any = node.args
    if bare_name(node) == "convolution_backward":
        yield from _gradients(arguments, precision)
        return
    source, weight = (arguments[index].meta["val"] for index in range(2))
    stride, is_transposed, groups = (arguments[index] for index in (3, 6, 8))
    yield _convolution(source, weight, node.meta["val"], stride, is_transposed, groups, precision)


def _gradients(arguments: Any, precision: Precision) -> Iterator[Product]:
    gradient, source, weight = (arguments[index].meta["val"] for index in range(3))
    stride, is_transposed, groups, wanted = (arguments[index] for index in (4, 7, 9, 10))
    if wanted[0]:
        # The input gradient of a convolution is a transposed convolution, and the other way round.
        yield _convolution(gradient, weight, source, stride, not is_transposed, groups, precision)
    if wanted[1]:
        points = math.prod(gradient.shape[2:]) * gradient.shape[0]
        small, large = source.shape[1] // groups, gradient.shape[1] // groups
        positions = math.prod(weight.shape[2:])
        yield Product(positions * small, points, large, precision, groups)


def _convolution(
    source: torch.Tensor,
    weight: torch.Tensor,
    result: torch.Tensor,
    stride: Any,
    is_transposed: bool,
    groups: int,
    precision: Precision,
) -> Product:
    points = result.shape[0] * math.prod(result.shape[2:])
    sizes, steps = list(weight.shape[2:]), list(stride)
    steps = steps * len(sizes) if len(steps) == 1 else steps
    height, row_step = (math.prod(sizes[:-1]), math.prod(steps[:-1])) if len(sizes) > 1 else (1, 1)
    line = result.shape[-1]
    # Each point of a transposed convolution reads the window divided by the stride, in steps of 1.
    window = (
        Window(-(-height // row_step), -(-sizes[-1] // steps[-1]), line=line)
        if is_transposed
        else Window(height, sizes[-1], row_step, steps[-1], line)
    )
    return Product(
        points, source.shape[1] // groups, result.shape[1] // groups, precision, groups, window
    )


def _attention(node: fx.Node, precision: Precision) -> Iterator[Product]:
    """Yields query times key and scores times value; each shape twice for a backward."""
    query, key = query_and_key(node)
    count = math.prod(query.shape[:-2])
    scores = Product(query.shape[-2], query.shape[-1], key.shape[-2], precision, count)
    values = Product(query.shape[-2], key.shape[-2], query.shape[-1], precision, count)
    yield from [scores, values] * (2 if "backward" in bare_name(node) else 1)


def _recurrent(node: fx.Node, precision: Precision) -> Iterator[Product]:
    """Yields the product of all inputs at once, and that of the hidden state in one step."""
    sequence, input_weight, hidden_weight = recurrent_operands(node)
    steps, rows = sequence.shape[:2]
    for count, weight in ((steps * rows, input_weight), (rows, hidden_weight)):
        yield Product(count, weight.shape[1], weight.shape[0], precision)
    if "backward" in bare_name(node):
        for weight in (input_weight, hidden_weight):
            yield Product(weight.shape[1], steps * rows, weight.shape[0], precision)
