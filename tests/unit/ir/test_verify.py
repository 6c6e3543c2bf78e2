"""`verify` finds each kind of fault in a graph; selections belong to their operations."""

from __future__ import annotations

from collections.abc import Callable
from operator import getitem

import pytest
import torch
from support.hand_graphs import HandGraph

from poptorch_emu.ir.control import COND
from poptorch_emu.ir.graph import Graph, Sink, SinkKind, operation_of, results_of
from poptorch_emu.ir.mutation import memory_of
from poptorch_emu.ir.verify import IllegalGraphError, verify

aten = torch.ops.aten


def graph_of_a_sum() -> Graph:
    """Returns a valid graph: a constant is added to an input."""
    hand = HandGraph()
    constant = hand.constant("c", torch.ones(2))
    return hand.end(hand.add(aten.add.Tensor, hand.input(2), constant))


def mutate(graph: Graph) -> None:
    (node,) = graph.operations
    node.target = aten.add_.Tensor


def call_python(graph: Graph) -> None:
    (node,) = graph.operations
    node.target = torch.add


def forget(*path: str) -> Callable[[Graph], None]:
    """Returns a function that removes an entry of `node.meta` from an operation or a source."""

    def change(graph: Graph) -> None:
        kind, entry = path
        nodes = graph.operations if kind == "operation" else graph.sources
        del next(iter(nodes)).meta[entry]

    return change


def repeat_the_sink(graph: Graph) -> None:
    (node,) = graph.operations
    graph.set_results([(Sink(SinkKind.OUTPUT, "0"), node)] * 2)


def drop_a_sink(graph: Graph) -> None:
    graph.sinks = ()


FAULTS = {
    "it changes one of its arguments": mutate,
    "it is not an operator of PyTorch's dispatcher": call_python,
    "it has no record": forget("operation", "record"),
    "it has no fake value": forget("operation", "val"),
    "it has no source": forget("source", "source"),
    "constant c has no value": lambda graph: graph.constants.clear(),
    "Two results have the same destination": repeat_the_sink,
    "results and sinks differ in number": drop_a_sink,
}


def test_graph_without_fault_then_is_returned() -> None:
    graph = graph_of_a_sum()
    assert verify(graph) is graph


@pytest.mark.parametrize("fault", FAULTS)
def test_graph_with_a_fault_then_the_error_names_it(fault: str) -> None:
    graph = graph_of_a_sum()
    FAULTS[fault](graph)
    with pytest.raises(IllegalGraphError, match=fault):
        verify(graph)


def test_fault_in_a_region_then_is_found() -> None:
    graph = graph_of_a_sum()
    graph.regions["body"] = graph_of_a_sum()
    mutate(graph.regions["body"])
    with pytest.raises(IllegalGraphError, match="it changes one of its arguments"):
        verify(graph)


def test_branch_that_runs_an_unknown_region_then_the_error_names_the_region() -> None:
    hand = HandGraph()
    condition, value = hand.input(dtype=torch.bool), hand.input(2)
    branch = hand.graph.add_operation(
        COND, (condition, "then", "otherwise", [value], [value], []), {}, [], hand.record
    )
    hand.end(value)
    assert branch.op == "call_function"
    with pytest.raises(IllegalGraphError, match=r"\['otherwise'\], which are not regions"):
        verify(hand.graph, {"then": graph_of_a_sum()})


def test_selection_then_shares_memory_with_what_its_operation_views() -> None:
    """The second piece of a split is a view of the input, but not a result of a maximum."""
    hand = HandGraph()
    x = hand.input(4, 3)
    split = hand.add(aten.split.Tensor, x, 2)
    piece = hand.graph.add_operation(getitem, (split, 1), {}, split.meta["val"][1], hand.record)
    top = hand.add(aten.max.dim, x, 0)
    highest = hand.graph.add_operation(getitem, (top, 0), {}, top.meta["val"][0], hand.record)
    assert memory_of(piece) is memory_of(split) is x
    assert memory_of(highest) is highest
    assert operation_of(piece) is split and operation_of(x) is x
    assert list(results_of(split)) == [split, piece]
