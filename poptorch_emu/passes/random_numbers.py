"""Gives every random operation the counter-based generator.

Its numbers depend on the seed, the micro-batch, the replica and the operation alone: not on
threads, and the same again when an activation is recomputed.
"""

from __future__ import annotations

import torch
from torch import fx

from poptorch_emu.errors import compiler_error
from poptorch_emu.ir.graph import Graph, Source, SourceKind, record_of, source_of
from poptorch_emu.ir.record import NodeRecord
from poptorch_emu.passes.simplify import remove_dead
from poptorch_emu.trace.random_ops import RANDOM_REWRITES


def run(graph: Graph) -> Graph:
    """Rewrites the random operations of `graph` in place and returns it.

    Raises:
        Error: an operation is random and has no counter-based form.
    """
    random_nodes = [node for node in graph.operations if is_random(node)]
    if not random_nodes:
        return graph
    rng = generator_state(graph)
    for op_id, node in enumerate(random_nodes):
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
    remove_dead(graph)
    return graph


def generator_state(graph: Graph) -> fx.Node:
    """Returns the source of the generator's state, which is added if there is none."""
    for node in graph.sources:
        if source_of(node).kind is SourceKind.RNG:
            return node
    state = torch.empty(4, dtype=torch.int64, device="meta")
    return graph.add_source(Source(SourceKind.RNG), state, NodeRecord())


def is_random(node: fx.Node) -> bool:
    """Returns whether an operation draws random numbers; attention without dropout does not."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    if "dropout_p" not in names:
        return True
    index = names.index("dropout_p")
    given = node.args[index] if index < len(node.args) else node.kwargs.get("dropout_p", 0.0)
    return bool(given != 0.0)
