"""The backward operations that lead only to gradients of weights, so that they can wait.

Neither another stage nor any other operation of their own stage needs their results. An operation
that returns gradients of weights together with those of inputs cannot wait, for example that of a
norm.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Set

from torch import fx

from poptorch_emu.ir.graph import Graph, Sink, SinkKind, operation_of
from poptorch_emu.ir.operator_traits import Traits, traits_of
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.partition import Partition
from poptorch_emu.torch_versions import OpOverload


def weight_operations(graph: Graph, placed: Partition, stages: Set[int]) -> frozenset[fx.Node]:
    """Returns the operations of the backwards of `stages` that lead to gradients of weights only.

    Args:
        graph: forward and backward operations, without mutation.
        placed: port of each operation.
        stages: stages whose backward has two halves.
    """
    sinks: defaultdict[fx.Node, list[Sink]] = defaultdict(list)
    for sink, node in graph.results:
        sinks[node].append(sink)
    found: set[fx.Node] = set()
    for node in reversed(graph.fx.nodes):
        kind, stage = placed.port_of.get(node, (Kind.FORWARD, -1))
        if kind is not Kind.BACKWARD or stage not in stages or node.op != "call_function":
            continue
        is_for_weights = all(sink.kind is SinkKind.GRADIENT for sink in sinks[node])
        users = [user for user in node.users if user.op == "call_function"]
        if (
            is_for_weights
            and all(user in found and placed.port_of[user][1] == stage for user in users)
            and _can_wait(node)
        ):
            found.add(node)
    return frozenset(node for node in found if operation_of(node) in found)


def _can_wait(node: fx.Node) -> bool:
    """Returns whether an operation may run later without any effect but its result."""
    if node.target is operator.getitem:
        return True
    traits = traits_of(node.target) if isinstance(node.target, OpOverload) else Traits()
    return traits.is_pure or traits.adds_to_sum or traits.is_left_to_sum
