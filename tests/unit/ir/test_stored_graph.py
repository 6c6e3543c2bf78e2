"""A graph that is stored as JSON and restored has the same operations, types and records."""

from __future__ import annotations

import json

import torch
from support.hand_graphs import HandGraph
from torch.utils._pytree import tree_leaves

from poptorch_emu.ir.graph import Graph, record_of
from poptorch_emu.ir.record import BlockPlace, NodeRecord, Phase
from poptorch_emu.ir.stored import restore, store
from poptorch_emu.ir.verify import verify

aten = torch.ops.aten


def example() -> Graph:
    """Returns a graph with several results, keywords, strides and a record of its own."""
    hand = HandGraph()
    x = hand.input(4, 3)
    hand.record = NodeRecord(phase=Phase.BACKWARD, place=BlockPlace(block_id="b", stage=2, ipu=1))
    split = hand.add(aten.split.Tensor, x, 2)
    hand.add(aten.full.default, [2, 2], 1.5, dtype=torch.float16, device=torch.device("meta"))
    return hand.end(
        hand.add(aten.t.default, x), gradient={"w": hand.add(aten.sum.default, x)}
    ), split


def described(graph: Graph) -> list[object]:
    """Returns what must survive, as text."""
    values = [tree_leaves(node.meta["val"]) for node in graph.fx.nodes if node.op != "output"]
    types = [[(t.shape, t.stride(), t.dtype) for t in leaves] for leaves in values]
    operations = [(str(n.target), str(n.args), str(n.kwargs)) for n in graph.operations]
    records = [record_of(node) for node in graph.operations]
    return [operations, records, types, [str(sink) for sink in graph.sinks]]


def test_graph_when_stored_and_restored_then_is_the_same() -> None:
    graph, split = example()
    graph.regions["body"], _ = example()
    restored, nodes = restore(json.loads(json.dumps(store(graph))))
    assert described(verify(restored)) == described(graph)
    assert described(restored.regions["body"]) == described(graph.regions["body"])
    assert len(nodes[split.name].meta["val"]) == 2
