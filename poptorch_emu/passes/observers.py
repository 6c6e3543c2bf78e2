"""Lets the host see values of a graph while it runs: a call of a function that returns nothing.

What is seen comes with the state of the random numbers, which says in which micro-batch and on
which replica it was made.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx

from poptorch_emu.ir.control import HOST_CALL
from poptorch_emu.ir.graph import Graph, operation_of, record_of
from poptorch_emu.ir.verify import verify
from poptorch_emu.passes.random_numbers import generator_state

# Of the state of the random numbers: the number of the micro-batch, and that of the replica.
MICRO_BATCH, REPLICA = 1, 2


def run(graph: Graph, observed: Mapping[str, fx.Node]) -> Graph:
    """Adds a call for each value, in place, and returns the graph.

    Args:
        graph: after all other passes.
        observed: values by the names of the functions, which take the value and the state.
    """
    state = generator_state(graph)
    position = {node: number for number, node in enumerate(graph.fx.nodes)}
    for name, node in observed.items():
        # A source is seen where it is first read, so that no block begins earlier than it did.
        is_source = node.op == "placeholder"
        user = min(node.users, key=position.__getitem__) if is_source else node.next
        with graph.fx.inserting_before(user):
            record = record_of(operation_of(user if is_source else node))
            call = graph.add_operation(HOST_CALL, (name, [node, state], []), {}, [], record)
        position[call] = len(position)
    return verify(graph)
