"""Lets attention read queries, keys and values where their common projection has put them.

PyTorch's attention layers project an input to all three at once, and copy the result into another
order, of which each is a part. The kernel reads strided tensors just as well, if their rows are
dense. The graph decides, whatever the stages.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from poptorch_emu.engine.engine_graph import EngineGraph
from poptorch_emu.engine.layout.arrangement import Arrangement, order_of, sizes

aten = torch.ops.aten

# Of each operation the places of queries, keys and values among its arguments.
_READERS = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: (0, 1, 2),
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: (1, 2, 3),
}


def leave_out_attention_copies(code: EngineGraph) -> int:
    """Takes away copies of which attention reads parts; returns how many."""
    copies = code.graph.fx.find_nodes(op="call_function", target=aten.clone.default)
    return sum(_leave_out(copy, code) for copy in copies)


def _leave_out(copy: fx.Node, code: EngineGraph) -> bool:
    """Takes a copy away if attention reads all that others read of it."""
    origin = copy.args[0]
    assert isinstance(origin, fx.Node)
    is_plain = copy.kwargs.get("memory_format") is torch.contiguous_format
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
    """One index of a copy's dimension, and how it is arranged for attention."""

    def __init__(self, select: fx.Node, end: fx.Node, arrangement: Arrangement) -> None:
        self._select = select
        self._end = end
        self._arrangement = arrangement

    @staticmethod
    def of(select: fx.Node) -> _Part | None:
        """Returns what a user reads of a copy, if it is a part that only attention reads."""
        value = select.meta["val"]
        if select.target is not aten.select.int or value.numel() == 0:
            return None
        found: Arrangement | None = Arrangement.of(value.shape)
        node = select
        while len(node.users) == 1 and found is not None:
            (user,) = node.users
            if user.target is aten.view.default:
                found = found.viewed(user.meta["val"].shape)
            elif user.target is aten.transpose.int:
                found = found.permuted(order_of(user.target, user.args, len(found.dims)))
            else:
                break
            node = user
        if found is None or not found.keeps_rows or not _is_for_attention(node):
            return None
        # A view of several stretches at once would copy them.
        is_strided = all(len(stretches) <= 1 for stretches in found.dims)
        return _Part(select, node, found) if is_strided else None

    def take_from(self, origin: fx.Node, code: EngineGraph) -> None:
        """Has attention read the part of what was copied."""
        end, arrangement = self._end, self._arrangement
        _, dim, index = self._select.args
        assert isinstance(dim, int) and isinstance(index, int)
        of_origin = origin.meta["val"]
        whole = torch.empty_strided(
            of_origin.shape, of_origin.stride(), dtype=of_origin.dtype, device="meta"
        )
        part = code.insert(
            self._select, aten.select.int, (origin, dim, index), whole.select(dim, index)
        )
        split = part.meta["val"].view(sizes(arrangement.split))
        node = code.insert(self._select, aten.view.default, (part, list(split.shape)), split)
        node = self._moved(node, aten.permute.default, arrangement.order, code)
        if node.meta["val"].shape != end.meta["val"].shape:  # Dimensions of length 1 are missing.
            node = self._moved(node, aten.view.default, end.meta["val"].shape, code)
        end.replace_all_uses_with(node)

    def _moved(
        self, node: fx.Node, target: torch._ops.OpOverload, how: Sequence[int], code: EngineGraph
    ) -> fx.Node:
        value = target(node.meta["val"], list(how))
        return code.insert(self._select, target, (node, list(how)), value)


def _is_for_attention(node: fx.Node) -> bool:
    """Returns whether all users of a node read it as queries, keys or values."""
    return bool(node.users) and all(
        user.target in _READERS
        and [place for place, each in enumerate(user.args) if each is node]
        == [place for place in _READERS[user.target] if user.args[place] is node]
        for user in node.users
    )
