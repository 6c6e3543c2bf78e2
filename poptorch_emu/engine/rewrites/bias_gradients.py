"""Has the gradients of linear layers' biases made with those of their weights.

They are sums of the columns that the products read (`segments/product_gradients.py`). Where a
kernel of ours makes a product, its sums have the same bits alone. The graph decides, whatever the
stages.
"""

from __future__ import annotations

import torch
from torch import fx

from poptorch_emu.engine.engine_graph import VIEWS, EngineGraph
from poptorch_emu.segments.product_gradients import COLUMN_SUMS, GRADIENT_PRODUCT, columns_of

aten = torch.ops.aten

_SUM = aten.sum.dim_IntList


def use_column_sums(code: EngineGraph) -> int:
    """Changes the sums of the columns that products of gradients read; returns how many."""
    num_changes = 0
    for product in code.graph.fx.find_nodes(op="call_function", target=GRADIENT_PRODUCT):
        columns = columns_of(product)
        for node in [] if columns is None else _sums_of(columns):
            num_changes += _change(node, product, code)
    return num_changes


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
    dims, num_dims = node.args[1], summed.meta["val"].dim()
    assert isinstance(dims, (list, tuple))
    is_whole = sorted(dim % num_dims for dim in dims) == list(range(num_dims - 1))
    return is_whole and summed.meta["val"].dtype == torch.float32


def _change(node: fx.Node, product: fx.Node, code: EngineGraph) -> bool:
    """Puts the sums behind the product, unless somebody reads them before."""
    num_columns, num_others = product.meta["val"].shape
    # Mostly a view takes dimensions of length 1 away.
    same = [node] if node.meta["val"].dim() == 1 else []
    same += [user for user in node.users if user.target in VIEWS and _is_row(user)]
    readers = {user for each in (node, *same) for user in each.users if user not in same}
    if not readers or any(reader < product for reader in readers):
        return False
    value = torch.empty(num_columns, dtype=torch.float32, device="meta")
    sums = code.insert(product, COLUMN_SUMS, (columns_of(product), num_others), value)
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
