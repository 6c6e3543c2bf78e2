"""What `RecomputationType.Standard` keeps: the values that are live at a few cheap places.

The forward of a stage is cut into about as many pieces as each has operations, where that is
cheapest, and what is live at a cut is kept. So a piece can be computed again from what was kept
before it, and only one of them is live at a time. Source: PopART's pass, as remembered.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import fx

from poptorch_emu.ir.graph import record_of, results_of
from poptorch_emu.ir.operator_traits import traits_of
from poptorch_emu.ir.record import Phase
from poptorch_emu.torch_versions import OpOverload


def standard_recomputation(operations: Sequence[fx.Node]) -> list[fx.Node]:
    """Returns the operations of a stage that are run again.

    Args:
        operations: of its forward in order, all of which may be run again.
    """
    kept: set[fx.Node] = set()
    period = math.isqrt(len(operations)) + 1
    places = _live_after(operations)
    while len(piece := list(itertools.islice(places, period))) == period:
        # Of equal ones the last: what is before it need not be kept for longer.
        kept.update(min(reversed(piece), key=_bytes_of))
    return [node for node in operations if node not in kept]


def _live_after(operations: Sequence[fx.Node]) -> Iterator[list[fx.Node]]:
    """Yields for each operation those up to it whose results forward reads after it."""
    nodes = operations[0].graph.nodes if operations else ()
    position = {node: index for index, node in enumerate(nodes)}
    live: list[tuple[int, fx.Node]] = []
    for node in operations:
        readers = (position[reader] for reader in _readers(node))
        live.append((max(readers, default=-1), node))
        live = [(last, other) for last, other in live if last > position[node]]
        yield [other for _, other in live]


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """Yields the operations of forward that read a result."""
    for value in results_of(node):
        for user in value.users:
            if user.op == "call_function" and record_of(user).phase is Phase.FORWARD:
                yield user


def _bytes_of(operations: Iterable[fx.Node]) -> int:
    """Returns what it takes to keep results; those that share memory count once."""
    sizes: dict[fx.Node, int] = {}
    for node in operations:
        root = _root(node)
        for value in results_of(node):
            tensor = value.meta["val"]
            if isinstance(tensor, torch.Tensor):
                sizes[root] = max(sizes.get(root, 0), tensor.nbytes)
    return sum(size for root, size in sizes.items() if root.op == "call_function")


def _root(node: fx.Node) -> fx.Node:
    """Returns the operation or source whose memory a result lies in."""
    while isinstance(node.target, OpOverload) and traits_of(node.target).is_view:
        node = node.all_input_nodes[0]
    return node
