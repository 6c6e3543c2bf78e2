"""Gradients that are products of matrices, and sums of columns: those of linear layers.

Where nothing reads such a gradient but its sum, the product is added to the sum while it is made,
so that no gradient is written to memory and read again. Up to 256 rows the kernel adds up a whole
element before it adds that to the sum, and the bits are those of a product and an addition. The
same kernel makes the other ones: ours or PyTorch's (`csrc/numerics/gemm/column_product.h`). The
gradient of the bias is made by the way, from what is read for the product, with the same bits as
alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import fx

from poptorch_emu.config import CompileConfig
from poptorch_emu.ir.graph import Graph, SinkKind
from poptorch_emu.segments.row_gradients import sums_are_whole
from poptorch_emu.update.formulas.optimizer_config import OptimizerConfig

# The product of two matrices, of which the left one lies transposed in memory.
torch.library.define("poptorch_emu::gradient_product", "(Tensor left, Tensor right) -> Tensor")

# What the columns of a matrix add up to, beside their product with so many others: where our kernel
# makes that, the sums are ours, too.
torch.library.define("poptorch_emu::column_sums", "(Tensor columns, int num_others) -> Tensor")

# Only the engine runs these: they change a sum of the window, which no value of the code stands
# for. The second one returns what the rows of `left` add up to.
torch.library.define("poptorch_emu::add_product", "(Tensor left, Tensor right, int sum) -> ()")
torch.library.define(
    "poptorch_emu::add_product.with_sums", "(Tensor left, Tensor right, int sum) -> Tensor"
)

GRADIENT_PRODUCT: torch._ops.OpOverload = torch.ops.poptorch_emu.gradient_product.default
COLUMN_SUMS: torch._ops.OpOverload = torch.ops.poptorch_emu.column_sums.default
ADD_PRODUCT: torch._ops.OpOverload = torch.ops.poptorch_emu.add_product.default
ADD_PRODUCT_WITH_SUMS: torch._ops.OpOverload = torch.ops.poptorch_emu.add_product.with_sums


@dataclass(frozen=True)
class ProductGradient:
    """The gradient of a weight that is added to its sum while it is made.

    Attributes:
        weight: its name.
        column_sums: the sums of the columns that the product reads, if somebody asks for them.
    """

    weight: str
    column_sums: fx.Node | None


def use_gradient_products(graph: Graph) -> int:
    """Changes those gradients of a graph that are products; returns how many."""
    products = {
        node for sink, node in graph.results if sink.kind is SinkKind.GRADIENT and _is_product(node)
    }
    for product in products:
        product.target = GRADIENT_PRODUCT
    return len(products)


def product_gradients(
    graph: Graph, config: CompileConfig, optimizer: OptimizerConfig | None
) -> Mapping[fx.Node, ProductGradient]:
    """Returns the products that are added to the sum of a weight.

    The graph decides, and what is asked of all sums, so that no bit depends on the stages.

    Args:
        graph: with the gradients among its results, of which products were changed.
        config: how sums are kept, and whether operations are looked at one by one.
        optimizer: in training.
    """
    if not sums_are_whole(config, optimizer) or config.checks_floating_point:
        return {}
    results = [node for _, node in graph.results]
    return {
        node: ProductGradient(sink.name, _column_sums_of(node))
        for sink, node in graph.results
        if sink.kind is SinkKind.GRADIENT
        and node.target is GRADIENT_PRODUCT
        and len(node.users) == 1
        and results.count(node) == 1
    }


def columns_of(product: fx.Node) -> fx.Node | None:
    """Returns the matrix of which a product of gradients reads the columns, (depth, n)."""
    left = product.args[0]
    assert isinstance(left, fx.Node)
    if left.target is not torch.ops.aten.t.default:
        return None
    columns = left.args[0]
    assert isinstance(columns, fx.Node)
    return columns


def _column_sums_of(product: fx.Node) -> fx.Node | None:
    columns, num_others = columns_of(product), product.meta["val"].shape[1]
    for user in () if columns is None else columns.users:
        if user.target is COLUMN_SUMS and user.args[1] == num_others:
            return user
    return None


def _is_product(node: fx.Node) -> bool:
    """Returns whether `node` is a float32 product over several rows.

    That of a single row is an outer product, which another kernel adds with other roundings.
    """
    if node.target is not torch.ops.aten.mm.default or node.meta["val"].dtype != torch.float32:
        return False
    left = node.args[0]
    assert isinstance(left, fx.Node)
    return bool(left.meta["val"].shape[1] > 1)
