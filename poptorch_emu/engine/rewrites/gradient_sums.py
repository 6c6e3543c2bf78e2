"""Gradients of linear layers that are added to their sums while they are made.

The gradient of such a layer's weight is a product of matrices. Where nothing reads it but its sum
over the window, the product is added to the sum inside the kernel, so that no gradient is written
to memory and read again. Up to 256 rows the kernel adds up a whole element before it adds that to
the sum, and the bits are those of a product and an addition.

The gradient of the bias is made of the columns of a matrix that the product reads: the left one,
transposed, where the weight is (outputs, inputs), the right one where it is (inputs, outputs). A
kernel that copies the left one anyway makes it by the way; alone, it has the same bits
(`csrc/numerics/gemm/column_sums.h`).
"""

from __future__ import annotations

import torch
from torch import fx

from poptorch_emu.engine.engine_graph import VIEWS, EngineGraph, is_single
from poptorch_emu.engine.product_kernels import Kernel, Role, choose
from poptorch_emu.engine.rewrites.linear import PRODUCT, use_kernel
from poptorch_emu.ir.arguments import arguments_of
from poptorch_emu.ir.graph import SinkKind
from poptorch_emu.torch_versions import OpOverload

aten = torch.ops.aten

# Only the engine runs these: they change a sum of the window, which no value of the code stands
# for. In a graph, `sum` is the name of the weight. The second one returns what the rows of `left`
# add up to.
torch.library.define(
    "poptorch_emu::add_product", "(Tensor left, Tensor right, int kernel, int sum) -> ()"
)
torch.library.define(
    "poptorch_emu::add_product.with_sums",
    "(Tensor left, Tensor right, int kernel, int sum) -> Tensor",
)

COLUMN_SUMS: OpOverload = torch.ops.poptorch_emu.column_sums.default
_ADD_PRODUCT: OpOverload = torch.ops.poptorch_emu.add_product.default
_ADD_PRODUCT_WITH_SUMS: OpOverload = torch.ops.poptorch_emu.add_product.with_sums
_SUM = aten.sum.dim_IntList


def lone_gradients(code: EngineGraph) -> list[tuple[str, fx.Node]]:
    """Returns weights with their gradients, where these are added to whole float32 sums alone.

    A running mean changes all of a sum, and a sum of which each replica holds a part is exchanged
    in each micro-batch.
    """
    config, optimizer = code.config, code.optimizer
    if optimizer is None or optimizer.accum_type != torch.float32 or config.is_running_mean:
        return []
    if config.num_sharers > 1 and config.sharding.accumulator is not None:
        return []
    results = [node for _, node in code.graph.results]
    return [
        (sink.name, node)
        for sink, node in code.graph.results
        if sink.kind is SinkKind.GRADIENT and len(node.users) == 1 and results.count(node) == 1
    ]


def choose_gradient_kernels(code: EngineGraph) -> int:
    """Names the kernels of those gradients that are products; returns how many."""
    products = {
        node
        for sink, node in code.graph.results
        if sink.kind is SinkKind.GRADIENT and node.target is aten.mm.default and is_single(node)
    }
    return sum(_choose_kernel(product) for product in products)


def _choose_kernel(product: fx.Node) -> bool:
    """Names the kernel, unless it would add with other roundings than a product and an addition."""
    left: fx.Node = arguments_of(product).self
    (rows, depth), outputs = left.meta["val"].shape, product.meta["val"].shape[1]
    row = choose(Role.WEIGHT_GRADIENT, rows, depth, outputs)
    if row is None and depth == 1:
        return False
    use_kernel(product, Kernel.LIBRARY if row is None else row.kernel)
    return True


def use_column_sums(code: EngineGraph) -> int:
    """Changes the sums of the columns that products of gradients read; returns how many."""
    num_changes = 0
    for product in code.graph.fx.find_nodes(op="call_function", target=PRODUCT):
        for columns in (_columns_of(product), arguments_of(product).right):
            if columns is not None:
                sums = [
                    _use_column_sums(node, product, columns, code) for node in _sums_of(columns)
                ]
                num_changes += sum(sums)
    return num_changes


def _columns_of(product: fx.Node) -> fx.Node | None:
    """Returns the matrix whose columns a product of gradients reads as its rows, (depth, n)."""
    left: fx.Node = arguments_of(product).left
    return arguments_of(left).self if left.target is aten.t.default else None


def _sums_of(columns: fx.Node) -> list[fx.Node]:
    """Returns the sums of the columns, or of that which the columns are a view of."""
    sums = [user for user in columns.users if _is_sum_of_columns(user, columns)]
    whole = columns.args[0] if columns.target in VIEWS else None
    if isinstance(whole, fx.Node) and whole.meta["val"].shape[-1:] == columns.meta["val"].shape[1:]:
        sums += [user for user in whole.users if _is_sum_of_columns(user, whole)]
    return sums


def _is_sum_of_columns(node: fx.Node, summed: fx.Node) -> bool:
    """Returns whether a node sums a tensor of float32 over all dimensions but the last."""
    if node.target is not _SUM or node.meta["val"].dtype != torch.float32:
        return False
    num_dims = summed.meta["val"].dim()
    dims = sorted(dim % num_dims for dim in arguments_of(node).dim)
    return dims == list(range(num_dims - 1)) and summed.meta["val"].dtype == torch.float32


def _use_column_sums(node: fx.Node, product: fx.Node, columns: fx.Node, code: EngineGraph) -> bool:
    """Puts the sums behind the product, unless somebody reads them before."""
    # Mostly a view takes dimensions of length 1 away.
    same = [node] if node.meta["val"].dim() == 1 else []
    same += [user for user in node.users if user.target in VIEWS and _is_row(user)]
    readers = {user for each in (node, *same) for user in each.users if user not in same}
    if not readers or any(reader < product for reader in readers):
        return False
    value = torch.empty(columns.meta["val"].shape[1], dtype=torch.float32, device="meta")
    sums = code.insert(product, COLUMN_SUMS, (columns,), value)
    product.append(sums)
    code.placed.port_of[sums] = code.placed.port_of[node]
    for each in same:
        each.replace_all_uses_with(sums)
    if node not in same and any(user not in same for user in node.users):
        shape = list(node.meta["val"].shape)
        whole = code.insert(product, aten.view.default, (sums, shape), node.meta["val"])
        sums.append(whole)
        node.replace_all_uses_with(whole)
    return True


def _is_row(node: fx.Node) -> bool:
    return bool(node.meta["val"].dim() == 1)


def add_products_to_sums(code: EngineGraph) -> int:
    """Changes products that only their sums read, so that they add to these; returns how many."""
    products = [pair for pair in lone_gradients(code) if pair[1].target is PRODUCT]
    for weight, product in products:
        product.args = (*product.args, weight)
        sums = _sums_beside(product, code)
        if sums is None:
            product.target, product.meta["val"] = _ADD_PRODUCT, ()
        else:
            product.target, product.meta["val"] = _ADD_PRODUCT_WITH_SUMS, sums.meta["val"]
            sums.replace_all_uses_with(product)
    return len(products)


def _sums_beside(product: fx.Node, code: EngineGraph) -> fx.Node | None:
    """Returns the sums of the columns that a product reads, if its segment makes them behind it."""
    columns = _columns_of(product)
    here = code.placed.port_of[product]
    for user in () if columns is None else columns.users:
        if user.target is COLUMN_SUMS and code.placed.port_of[user] == here:
            return user
    return None
