"""Replaces rounding to float16 by stochastic rounding.

A cast becomes `round_stochastic`. Any other operation with a float16 result is computed in float32
from widened arguments, and its result is rounded once, because the float16 kernels would round to
nearest. Operations that only move, select or compare numbers never round, so they do not change.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import torch
from torch import fx

from poptorch_emu.ir.graph import Graph, record_of
from poptorch_emu.passes.random_numbers import generator_state
from poptorch_emu.passes.widening import Widener, is_half, makes_half
from poptorch_emu.trace.fakes.fake_tensors import fake_like

aten = torch.ops.aten

# Numbers of random operations. A graph's own operations have numbers below `_FIRST_ID`, and the
# engine's accumulators start at three times `_FIRST_ID` (csrc/runtime/gradients/accumulators.cpp).
_FIRST_ID = 1 << 28
_IDS_PER_UPDATE = 16

# Operations, beside views, whose results only contain numbers from their arguments.
_EXACT = frozenset(
    {
        aten.abs,
        aten.amax,
        aten.amin,
        aten.cat,
        aten.clamp,
        aten.clone,
        aten.constant_pad_nd,
        aten.embedding,
        aten.flip,
        aten.gather,
        aten.index,
        aten.index_select,
        aten.masked_fill,
        aten.max_pool2d_with_indices,
        aten.maximum,
        aten.minimum,
        aten.neg,
        aten.relu,
        aten.reshape,
        aten.select_backward,
        aten.select_scatter,
        aten.slice_backward,
        aten.slice_scatter,
        aten.sort,
        aten.stack,
        aten.threshold_backward,
        aten.topk,
        aten.where,
    }
)


def first_update_id(number: int) -> int:
    """Returns the number of the first rounding in the update of parameter `number`."""
    return 2 * _FIRST_ID + number * _IDS_PER_UPDATE


def run(graph: Graph, first_id: int = _FIRST_ID) -> Graph:
    """Rewrites `graph` in place and returns it.

    Args:
        graph: graph of one micro-batch or of one update.
        first_id: number of the first rounding among the random operations.
    """
    nodes = [node for node in graph.operations if _rounds(node)]
    if nodes:
        rewriter = _Rewriter(graph, count(first_id))
        for node in nodes:
            rewriter.rewrite(node)
    return graph


class _Rewriter:
    def __init__(self, graph: Graph, ids: Iterator[int]) -> None:
        self._graph = graph
        self._ids = ids
        self._rng = generator_state(graph)
        self._widener = Widener(graph, self._rounded)

    def rewrite(self, node: fx.Node) -> None:
        """Makes `node` round stochastically."""
        if node.target is not aten._to_copy.default:
            self._widener.widen(node)
            return
        (source,) = node.all_input_nodes
        with self._graph.fx.inserting_before(node):
            rounded = self._rounded(source, node)
        node.replace_all_uses_with(rounded)
        self._graph.fx.erase_node(node)

    def _rounded(self, source: fx.Node, like: fx.Node) -> fx.Node:
        return self._graph.add_operation(
            torch.ops.poptorch_emu.round_stochastic.default,
            (self._rng, next(self._ids), source),
            {},
            fake_like(like.meta["val"], torch.float16),
            record_of(like),
        )


def _rounds(node: fx.Node) -> bool:
    """Returns whether an operation may round numbers to float16."""
    target: Any = node.target
    if target is aten._to_copy.default:
        (source,) = node.all_input_nodes
        return is_half(node) and not is_half(source) and source.meta["val"].is_floating_point()
    makes_view = any(result.alias_info is not None for result in target._schema.returns)
    if not makes_half(node) or makes_view or target.overloadpacket in _EXACT:
        return False
    # An operation without floating-point arguments draws or fills, which is exact in its own type.
    return any(_is_floating(source.meta["val"]) for source in node.all_input_nodes)


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()
