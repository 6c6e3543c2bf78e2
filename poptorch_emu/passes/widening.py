"""Computes an operation with float16 results in float32: widen, run, round.

An IPU computes such an operation in float16. The marks of `ir/marks.py` tell that to the model of
the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from poptorch_emu.ir.graph import Graph, record_of, results_of
from poptorch_emu.ir.marks import IS_WIDENED, IS_WIDENING
from poptorch_emu.torch_versions import pytree
from poptorch_emu.trace.fakes.fake_tensors import fake_like

aten = torch.ops.aten

# Adds the float16 form of a value (first node) at the graph's insertion point, with the record and
# the metadata of the second node.
Rounding = Callable[[fx.Node, fx.Node], fx.Node]


class Widener:
    """Widens operations of one graph. A value that several of them read is cast once."""

    def __init__(self, graph: Graph, rounded: Rounding) -> None:
        self._graph = graph
        self._rounded = rounded
        self._wide: dict[Any, fx.Node] = {}

    def widen(self, node: fx.Node) -> None:
        """Changes `node` in place to run in float32; its users get rounded results."""
        with self._graph.fx.inserting_before(node):
            node.meta[IS_WIDENED] = True
            node.args, node.kwargs = pytree.tree_map(
                lambda value: self._widened(value, node), (node.args, node.kwargs)
            )
        narrow = [result for result in results_of(node) if is_half(result)]
        node.meta["val"] = pytree.tree_map_only(torch.Tensor, wide_fake, node.meta["val"])
        for result in narrow:
            self._round(result)

    def _round(self, result: fx.Node) -> None:
        users = list(result.users)
        with self._graph.fx.inserting_after(result):
            rounded = self._rounded(result, result)
        rounded.meta[IS_WIDENING] = True
        result.meta["val"] = wide_fake(result.meta["val"])
        for user in users:
            user.replace_input_with(result, rounded)

    def _widened(self, value: Any, user: fx.Node) -> Any:
        """Returns the float32 form of an argument of `user`."""
        if value is torch.float16:
            return torch.float32
        if not isinstance(value, fx.Node) or not is_half(value):
            return value
        key = (value, self._place_of(user))
        if key not in self._wide:
            self._wide[key] = self._cast(value, user)
            self._wide[key].meta[IS_WIDENING] = True
        return self._wide[key]

    def _place_of(self, user: fx.Node) -> Any:
        """Returns a key that users share if they can share a cast.

        Users in different blocks or phases do not share casts, so that a value which waits between
        them is kept in float16.
        """
        record = record_of(user)
        return record.place, record.phase

    def _cast(self, value: fx.Node, user: fx.Node) -> fx.Node:
        """Returns a cast of `value` to float32, added at the graph's insertion point."""
        return self._graph.add_operation(
            aten._to_copy.default,
            (value,),
            {"dtype": torch.float32},
            wide_fake(value.meta["val"]),
            record_of(user),
        )


def is_half(node: fx.Node) -> bool:
    """Returns whether the value of `node` is one float16 tensor."""
    value = node.meta["val"]
    return isinstance(value, torch.Tensor) and value.dtype is torch.float16


def makes_half(node: fx.Node) -> bool:
    """Returns whether some result of `node` is a float16 tensor."""
    values = pytree.tree_leaves(node.meta["val"])
    return any(isinstance(value, torch.Tensor) and value.dtype is torch.float16 for value in values)


def wide_fake(value: torch.Tensor) -> torch.Tensor:
    """Returns a float32 fake tensor for a float16 value; other values are returned unchanged."""
    if value.dtype is not torch.float16:
        return value
    return fake_like(value, torch.float32)
