"""Values that count as equal on all replicas are equal on two replicas with different data."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from support.hand_graphs import RNG, HandGraph
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from poptorch_emu.config import CompileConfig, WeightGroups
from poptorch_emu.enums import CommGroupType
from poptorch_emu.ir.control import HOST_CALL
from poptorch_emu.ir.graph import Graph, Source, SourceKind, source_of
from poptorch_emu.ir.record import NodeRecord
from poptorch_emu.segments.replica_equal import replica_equal_values

aten = torch.ops.aten


class _Seen(fx.Interpreter):
    """Keeps the value of every node."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(fx.GraphModule({}, graph.fx), garbage_collect_values=False)
        self.seen: dict[str, Any] = {}

    def run_node(self, node: fx.Node) -> Any:
        self.seen[node.name] = super().run_node(node)
        return self.seen[node.name]


def values_of(graph: Graph, replica: int, own: set[str], shared: int) -> dict[str, Any]:
    """Returns all values on one replica.

    Args:
        graph: what is run.
        replica: index of the replica, which determines inputs, generator and the variables in
            `own`.
        own: variables that replicas have of their own.
        shared: how many replicas get the same input.
    """
    values = []
    for number, node in enumerate(graph.sources):
        source, value = source_of(node), node.meta["val"]
        seed = 100 * number
        if source.kind is SourceKind.INPUT and value.dim():
            seed += replica // shared
        if source.name in own:
            seed += replica
        if source.kind is SourceKind.RNG:
            values.append(RNG + torch.tensor([0, 0, replica, 0]))
        elif source.kind is SourceKind.CONSTANT:
            values.append(graph.constants[source.name])
        else:
            generator = torch.Generator().manual_seed(seed)
            values.append(torch.randn(value.shape, generator=generator))
    run = _Seen(graph)
    run.run(*values)
    return run.seen


def model() -> HandGraph:
    """Computes values from inputs, scalars, constants, weights, statistics and random numbers."""
    hand = HandGraph()
    x, scalar = hand.input(3), hand.input()
    weight, own, mean = (hand.variable(name, 3) for name in ("weight", "own", "mean"))
    table = hand.constant("table", torch.arange(3.0))
    state = torch.empty(4, dtype=torch.int64, device="meta")
    rng = hand.graph.add_source(Source(SourceKind.RNG), state, NodeRecord())
    drawn = hand.graph.add_operation(
        torch.ops.poptorch_emu.normal.default,
        (rng, 0, [3], torch.float32, 0.0, 1.0),
        {},
        torch.empty(3, device="meta"),
        NodeRecord(),
    )
    equal = hand.add(aten.mul.Tensor, hand.add(aten.sin.default, weight), table)
    scaled = hand.add(aten.mul.Tensor, equal, scalar)
    results = [hand.add(aten.add.Tensor, scaled, other) for other in (x, own, mean, drawn)]
    hand.end(scaled, *results, variable={"mean": results[2]})
    return hand


@pytest.mark.parametrize("group_size", [1, 2])
def test_values_that_are_said_to_be_equal_then_are_and_the_others_are_not(group_size) -> None:
    graph = model().graph
    groups = WeightGroups("own", CommGroupType.Consecutive, 1, reads_all=False)
    config = CompileConfig(
        True, replication_factor=2, input_group_size=group_size, weight_groups=(groups,)
    )
    equal = {node.name for node in replica_equal_values(graph, config)}
    one, other = (values_of(graph, replica, {"own", "mean"}, group_size) for replica in (0, 1))
    same = {
        name for name, value in one.items() if name != "output" and torch.equal(value, other[name])
    }
    assert equal == same
    assert ("input_0" in equal) is (group_size == 2)


def test_host_when_it_is_called_anywhere_then_nothing_is_sure() -> None:
    mode = FakeTensorMode()
    outer, body = HandGraph(mode), HandGraph(mode)
    call = body.add(HOST_CALL, "f", [body.input(3)], ["float32[3]"])
    body.end(body.add(operator.getitem, call, 0))
    graph = outer.end(outer.add(aten.sin.default, outer.variable("w", 3)))
    config = CompileConfig(True, replication_factor=2)
    assert len(replica_equal_values(graph, config)) == 2
    graph.regions["body"] = body.graph
    assert replica_equal_values(graph, config) == frozenset()
