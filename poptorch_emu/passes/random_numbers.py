"""Replaces every random operation by its form with a counter-based generator.

The random numbers then depend only on the seed, the micro-batch, the replica and the operation.
They do not depend on threads, and a recomputed activation has the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import torch
from torch import fx

from poptorch_emu.errors import compiler_error
from poptorch_emu.ir.arguments import is_random
from poptorch_emu.ir.control import FOR_LOOP, add_captured, region_names
from poptorch_emu.ir.graph import Graph, Source, SourceKind, record_of, source_of
from poptorch_emu.ir.record import NodeRecord
from poptorch_emu.passes.simplify import remove_dead
from poptorch_emu.trace.pytorch.random_ops import RANDOM_REWRITES


def run(graph: Graph) -> Graph:
    """Rewrites the random operations of `graph` and its regions in place and returns it.

    This pass runs before any pass that removes operations. So a region that recomputes another one
    has the same operations in the same order, and they get the same random numbers.

    Raises:
        Error: a random operation has no counter-based form.
    """
    rewriting = _Rewriting(graph)
    rewriting.run(graph, rewriting.new_id, lambda: generator_state(graph))
    remove_dead(graph)
    return graph


def generator_state(graph: Graph) -> fx.Node:
    """Returns the source with the generator's state, which is added if the graph has none."""
    for node in graph.sources:
        if source_of(node).kind is SourceKind.RNG:
            return node
    state = torch.empty(4, dtype=torch.int64, device="meta")
    return graph.add_source(Source(SourceKind.RNG), state, NodeRecord())


class _Rewriting:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._fresh_ids = count()
        self._ids_of_region: dict[str, list[int]] = {}

    def new_id(self) -> int:
        """Returns a new number for an operation."""
        return next(self._fresh_ids)

    def run(self, graph: Graph, take_id: Callable[[], int], rng: Callable[[], fx.Node]) -> None:
        """Rewrites one graph and the regions that it runs, in the order of the operations."""
        for node in graph.operations:
            if is_random(node):
                _replace(graph, node, rng(), take_id())
            for position, name in enumerate(region_names(node)):
                region = self._graph.regions[name]
                state = _RegionState(region, node, position, rng)
                self.run(region, self._ids_for(name, region, take_id), state)

    def _ids_for(self, name: str, region: Graph, take_id: Callable[[], int]) -> Callable[[], int]:
        """Returns the function that numbers the operations of a region, and records its numbers."""
        noted = self._ids_of_region.setdefault(name, [])
        known = iter(self._ids_of_region.get(region.repeats, ()))

        def take() -> int:
            taken = next(known, None)
            noted.append(take_id() if taken is None else taken)
            return noted[-1]

        return take


class _RegionState:
    """The generator's state inside a region: a parameter, which a loop forks for each iteration."""

    def __init__(
        self, region: Graph, node: fx.Node, position: int, outer: Callable[[], fx.Node]
    ) -> None:
        self._region = region
        self._node = node
        self._position = position
        self._outer = outer
        self._state: fx.Node | None = None

    def __call__(self) -> fx.Node:
        """Returns the node of the state, which is added at the first use."""
        if self._state is None:
            outer = self._outer()
            value, record = outer.meta["val"], record_of(self._node)
            number = add_captured(self._node, self._position, outer)
            source = Source(SourceKind.INPUT, str(number))
            self._state = self._region.add_source(source, value, record)
            if self._node.target is FOR_LOOP:
                self._state = self._of_iteration(self._state, value, record)
        return self._state

    def _of_iteration(self, state: fx.Node, value: torch.Tensor, record: NodeRecord) -> fx.Node:
        number = torch.empty((), dtype=torch.int64, device="meta")
        iteration = self._region.add_source(Source(SourceKind.ITERATION), number, record)
        first = self._region.operations[0]
        with self._region.fx.inserting_before(first):
            return self._region.add_operation(
                torch.ops.poptorch_emu.fork_rng.default, (state, iteration), {}, value, record
            )


def _replace(graph: Graph, node: fx.Node, rng: fx.Node, op_id: int) -> None:
    if node.target not in RANDOM_REWRITES:
        raise compiler_error(
            f"{node.target} at {record_of(node).source} draws random numbers in a way that has "
            "no counter-based form here. Build it from torch.rand, torch.randn, "
            "torch.bernoulli, torch.randint, torch.randperm or dropout."
        )
    rewrite = RANDOM_REWRITES[node.target]
    target, args, kwargs = rewrite(node.args, node.kwargs, rng, op_id)
    with graph.fx.inserting_before(node):
        new = graph.add_operation(target, args, kwargs, node.meta["val"], record_of(node))
    node.replace_all_uses_with(new)
    graph.fx.erase_node(node)
