"""Finds the table and the rows that a gather or a scatter moves, for the model of the machine."""

from __future__ import annotations

import torch
from torch import fx

from poptorch_emu.ir.graph import tensors_of
from poptorch_emu.machine.costs.gather import RowsPlan, add_rows, look_up
from poptorch_emu.machine.costs.tiles import Tiles
from poptorch_emu.plan.operations.operation_family import bare_name, item_bytes

_UPDATES = ("scatter", "put", "add", "backward")


def rows_plan(node: fx.Node, tiles: Tiles) -> RowsPlan:
    """Returns the plan of a gather or a scatter that moves rows.

    Args:
        node: the operation.
        tiles: tiles that share the work.
    """
    is_update = any(word in bare_name(node) for word in _UPDATES)
    table, num_indices, width = moved_rows(node, is_update)
    plan = add_rows if is_update else look_up
    num_rows = max(1, table.numel() // width)
    return plan(num_rows, width, num_indices, item_bytes(node, table), tiles)


def moved_rows(node: fx.Node, is_update: bool) -> tuple[torch.Tensor, int, int]:
    """Returns the table, the number of rows that are moved, and the number of elements of a row.

    An index of `gather` and `scatter` moves one element, unless it was expanded along the last
    axis, because users do that to move whole rows.

    Args:
        node: the operation.
        is_update: whether rows are added to the table; the table is then the result.
    """
    result = next(tensors_of([node]))
    operands = [(value, value.meta["val"]) for value in node.all_input_nodes]
    numbers = [tensor for _, tensor in operands if tensor.is_floating_point()]
    indices = [(v, t) for v, t in operands if t.dtype in (torch.int64, torch.int32)]
    table = result if is_update or not numbers else numbers[0]
    moved = numbers[-1] if is_update and numbers else result
    if not indices:
        return table, 1, max(1, moved.numel())
    value, index = max(indices, key=lambda pair: pair[1].numel())
    count, width = max(1, index.numel()), max(1, moved.numel() // max(1, index.numel()))
    if bare_name(node).startswith(("gather", "scatter")):
        is_row = value.target is torch.ops.aten.expand.default
        width = index.shape[-1] if is_row else 1
        count //= width
    return table, count, width
