"""Shows values of a graph to the host while the graph runs, by host calls that return nothing.

Each call also passes the state of the random numbers, because the state contains the numbers of the
micro-batch and of the replica.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx

from poptorch_emu.ir.control import HOST_CALL
from poptorch_emu.ir.graph import Graph, operation_of, record_of
from poptorch_emu.ir.verify import verify
from poptorch_emu.passes.random_numbers import generator_state

# Places of the micro-batch and the replica in the state of the random numbers.
MICRO_BATCH, REPLICA = 1, 2


def run(graph: Graph, observed: Mapping[str, fx.Node]) -> Graph:
    """Adds a call for each value, in place, and returns the graph.

    Args:
        graph: graph after all other passes.
        observed: observed value by the name of its host function. The function receives the value
            and the state.
    """
    state = generator_state(graph)
    position = {node: number for number, node in enumerate(graph.fx.nodes)}
    for name, node in observed.items():
        # A source is shown at its first use. An earlier call would make its block begin earlier.
        is_source = node.op == "placeholder"
        user = min(node.users, key=position.__getitem__) if is_source else node.next
        with graph.fx.inserting_before(user):
            record = record_of(operation_of(user if is_source else node))
            call = graph.add_operation(HOST_CALL, (name, [node, state], []), {}, [], record)
        position[call] = len(position)
    return verify(graph)
