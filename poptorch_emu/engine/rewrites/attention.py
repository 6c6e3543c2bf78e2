"""Lets attention read queries, keys and values from the result of their joint projection.

PyTorch's attention layers project an input to queries, keys and values with one product. They copy
the result into another order and select the three parts. The attention kernel accepts strided
tensors if their rows are dense, so the copy is not needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from poptorch_emu.engine.engine_graph import EngineGraph
from poptorch_emu.engine.layout.arrangement import Arrangement, order_of, sizes
from poptorch_emu.ir.arguments import arguments_of
from poptorch_emu.torch_versions import OpOverload

aten = torch.ops.aten

_READERS = {
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
}
# Arguments of the readers that may be strided.
_INPUTS = {"query", "key", "value"}


def leave_out_attention_copies(code: EngineGraph) -> int:
    """Removes copies whose parts only attention reads; returns the number of removed copies."""
    copies = code.graph.fx.find_nodes(op="call_function", target=aten.clone.default)
    return sum(_leave_out(copy, code) for copy in copies)


def _leave_out(copy: fx.Node, code: EngineGraph) -> bool:
    """Removes a copy if all of its users are parts that only attention reads."""
    call = arguments_of(copy)
    origin: fx.Node = call.self
    is_plain = call.memory_format is torch.contiguous_format
    has_dense_rows = origin.meta["val"].stride()[-1:] == (1,)
    if not is_plain or not has_dense_rows or not copy.users:
        return False
    parts = [_Part.of(user) for user in copy.users]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return False
    for part in found:
        part.take_from(origin, code)
    return True


class _Part:
    """One index of a dimension of a copy, and its arrangement for attention."""

    def __init__(self, select: fx.Node, end: fx.Node, arrangement: Arrangement) -> None:
        self._select = select
        self._end = end
        self._arrangement = arrangement

    @staticmethod
    def of(select: fx.Node) -> _Part | None:
        """Returns the part that `select` reads; `None` unless only attention reads it."""
        if select.target is not aten.select.int or select.meta["val"].numel() == 0:
            return None
        found: Arrangement | None = Arrangement.of(select.meta["val"].shape)
        node = select
        while len(node.users) == 1 and found is not None:
            (user,) = node.users
            if user.target is aten.view.default:
                found = found.viewed(user.meta["val"].shape)
            elif user.target is aten.transpose.int:
                found = found.permuted(order_of(user, len(found.dims)))
            else:
                break
            node = user
        if found is None or not found.keeps_rows or not _is_for_attention(node):
            return None
        # If a dimension joins several stretches of memory, it cannot be a view.
        is_strided = all(len(stretches) <= 1 for stretches in found.dims)
        return _Part(select, node, found) if is_strided else None

    def take_from(self, origin: fx.Node, code: EngineGraph) -> None:
        """Replaces the part of the copy by a view of the copied tensor, `origin`."""
        end, arrangement = self._end, self._arrangement
        call = arguments_of(self._select)
        of_origin = origin.meta["val"]
        whole = torch.empty_strided(
            of_origin.shape, of_origin.stride(), dtype=of_origin.dtype, device="meta"
        )
        value = whole.select(call.dim, call.index)
        args = (origin, call.dim, call.index)
        part = code.insert(self._select, aten.select.int, args, value)
        split = part.meta["val"].view(sizes(arrangement.split))
        node = code.insert(self._select, aten.view.default, (part, list(split.shape)), split)
        node = self._moved(node, aten.permute.default, arrangement.order, code)
        if node.meta["val"].shape != end.meta["val"].shape:  # Dimensions of length 1 are missing.
            node = self._moved(node, aten.view.default, end.meta["val"].shape, code)
        end.replace_all_uses_with(node)

    def _moved(
        self, node: fx.Node, target: OpOverload, how: Sequence[int], code: EngineGraph
    ) -> fx.Node:
        value = target(node.meta["val"], list(how))
        return code.insert(self._select, target, (node, list(how)), value)


def _is_for_attention(node: fx.Node) -> bool:
    """Returns whether all users of a node read it as queries, keys or values."""
    return bool(node.users) and all(
        user.target in _READERS and _names_of(node, user) <= _INPUTS for user in node.users
    )


def _names_of(node: fx.Node, user: fx.Node) -> set[str]:
    """Returns the names of the arguments of `user` that hold the value."""
    return {name for name, value in vars(arguments_of(user)).items() if value is node}
