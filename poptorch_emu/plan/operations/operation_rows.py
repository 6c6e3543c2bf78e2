"""Which rows of which table a gather or a scatter moves, for the model of the machine."""

from __future__ import annotations

import torch
from torch import fx

from poptorch_emu.plan.operations.operation_family import bare_name, tensors_of


def moved_rows(node: fx.Node, is_update: bool) -> tuple[torch.Tensor, int, int]:
    """Returns the table, how many rows of it are moved, and how many elements each has.

    An index of `gather` and `scatter` moves one element, unless it was expanded along the last
    axis, as one does to take rows.

    Args:
        node: the operation.
        is_update: whether rows are added to the table, which then is the result.
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
        is_row = value.op == "call_function" and bare_name(value) == "expand"
        width = index.shape[-1] if is_row else 1
        count //= width
    return table, count, width
