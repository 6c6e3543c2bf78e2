"""Standard recomputation (`RecomputationType.Standard`): keeps the values at a few cheap cuts.

The forward of a stage with n operations is cut into about √n pieces at the places with the fewest
live bytes. The values that are live at a cut are kept, so that the piece after it can be computed
again. Only one recomputed piece is live at a time. Source: PopART's pass, as remembered.
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
    """Returns the operations of a stage that run again.

    Args:
        operations: forward operations of the stage that may run again, in order.
    """
    kept: set[fx.Node] = set()
    period = math.isqrt(len(operations)) + 1
    places = _live_after(operations)
    while len(piece := list(itertools.islice(places, period))) == period:
        # The last of equal places, because values before it are then freed earlier.
        kept.update(min(reversed(piece), key=_bytes_of))
    return [node for node in operations if node not in kept]


def _live_after(operations: Sequence[fx.Node]) -> Iterator[list[fx.Node]]:
    """Yields, for each operation, the operations up to it whose results forward reads later."""
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
    """Returns the bytes of results. Results that share memory count once."""
    sizes: dict[fx.Node, int] = {}
    for node in operations:
        root = _root(node)
        for value in results_of(node):
            tensor = value.meta["val"]
            if isinstance(tensor, torch.Tensor):
                sizes[root] = max(sizes.get(root, 0), tensor.nbytes)
    return sum(size for root, size in sizes.items() if root.op == "call_function")


def _root(node: fx.Node) -> fx.Node:
    """Returns the operation or source that owns the memory of a result."""
    while isinstance(node.target, OpOverload) and traits_of(node.target).is_view:
        node = node.all_input_nodes[0]
    return node
