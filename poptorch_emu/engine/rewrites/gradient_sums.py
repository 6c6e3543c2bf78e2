"""Products that add the gradients of linear layers directly to their sums.

The gradient of a linear layer's weight is a matrix product. If only the sum over the window reads
it, the kernel adds the product to the sum, so that no gradient is written to memory and read again.
For up to 256 rows the kernel finishes an element before it adds that element to the sum. The bits
are then the same as those of a product followed by an addition.

The gradient of the bias is the sum of the columns of a matrix that the product reads: the left one,
transposed, for a weight (outputs, inputs), and the right one for a weight (inputs, outputs). A
kernel that copies the left matrix anyway also sums its columns, with the same bits as a separate
sum (`csrc/numerics/gemm/column_sums.h`).
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

# Only the engine can run these operators, because they change a sum of the window, which is no
# value of the graph. In a graph, `sum` is the name of the weight. The second overload also returns
# the sum of each row of `left`.
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
    """Returns weights and gradients for which only a whole float32 sum reads the gradient.

    A running mean scales the whole sum at each addition, so it is excluded. A sharded sum is
    excluded because it is exchanged in each micro-batch.
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
    """Chooses kernels for the gradients that are products; returns the number of products."""
    products = {
        node
        for sink, node in code.graph.results
        if sink.kind is SinkKind.GRADIENT and node.target is aten.mm.default and is_single(node)
    }
    return sum(_choose_kernel(product) for product in products)


def _choose_kernel(product: fx.Node) -> bool:
    """Chooses a kernel, unless it would round differently from a product and an addition."""
    left: fx.Node = arguments_of(product).self
    (rows, depth), outputs = left.meta["val"].shape, product.meta["val"].shape[1]
    row = choose(Role.WEIGHT_GRADIENT, rows, depth, outputs)
    if row is None and depth == 1:
        return False
    use_kernel(product, Kernel.LIBRARY if row is None else row.kernel)
    return True


def use_column_sums(code: EngineGraph) -> int:
    """Replaces sums of columns that products of gradients read; returns the number replaced."""
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
    """Returns the matrix (depth, n) whose transpose is the left matrix of a product."""
    left: fx.Node = arguments_of(product).left
    return arguments_of(left).self if left.target is aten.t.default else None


def _sums_of(columns: fx.Node) -> list[fx.Node]:
    """Returns the column sums of a matrix, or of the tensor that the matrix is a view of."""
    sums = [user for user in columns.users if _is_sum_of_columns(user, columns)]
    whole = columns.args[0] if columns.target in VIEWS else None
    if isinstance(whole, fx.Node) and whole.meta["val"].shape[-1:] == columns.meta["val"].shape[1:]:
        sums += [user for user in whole.users if _is_sum_of_columns(user, whole)]
    return sums


def _is_sum_of_columns(node: fx.Node, summed: fx.Node) -> bool:
    """Returns whether a node sums a float32 tensor over all dimensions except the last."""
    if node.target is not _SUM or node.meta["val"].dtype != torch.float32:
        return False
    num_dims = summed.meta["val"].dim()
    dims = sorted(dim % num_dims for dim in arguments_of(node).dim)
    return dims == list(range(num_dims - 1)) and summed.meta["val"].dtype == torch.float32


def _use_column_sums(node: fx.Node, product: fx.Node, columns: fx.Node, code: EngineGraph) -> bool:
    """Moves the column sums behind the product, unless an operation before it reads them."""
    # A view usually removes the dimensions of length 1.
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
    """Lets products that only a sum reads add to the sum; returns the number of products."""
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
    """Returns the column sums of a product's left matrix, if they are computed in its segment."""
    columns = _columns_of(product)
    here = code.placed.port_of[product]
    for user in () if columns is None else columns.users:
        if user.target is COLUMN_SUMS and code.placed.port_of[user] == here:
            return user
    return None
