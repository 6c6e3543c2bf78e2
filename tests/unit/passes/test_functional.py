"""A graph that mutates becomes a graph that computes the same without mutation."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
from support.hand_graphs import HandGraph, computed
from torch._subclasses.fake_tensor import FakeTensorMode

from poptorch_emu.errors import Error
from poptorch_emu.ir.graph import Graph
from poptorch_emu.ir.mutation import is_mutating
from poptorch_emu.ir.record import NodeRecord
from poptorch_emu.ir.verify import verify
from poptorch_emu.passes import functional
from poptorch_emu.trace.fakes.result_memo import ResultMemo

aten = torch.ops.aten
IPU = torch.device("ipu:0")


def functionalised(graph: Graph, mode: FakeTensorMode) -> Graph:
    return verify(functional.run(graph, mode, ResultMemo(IPU)))


def add_twice(hand: HandGraph) -> None:
    """`y = x * 2; y += x; y *= y`."""
    x = hand.input(4)
    y = hand.add(aten.mul.Tensor, x, 2)
    y = hand.add(aten.add_.Tensor, y, x)
    hand.end(hand.add(aten.mul_.Tensor, y, y))


def write_a_view(hand: HandGraph) -> None:
    """`y = x + 1; y[1] = 0`, read before and after."""
    y = hand.add(aten.add.Tensor, hand.input(4), 1)
    before = hand.add(aten.sum.default, y)
    hand.add(aten.zero_.default, hand.add(aten.select.int, y, 0, 1))
    hand.end(before, hand.add(aten.sum.default, y), y)


def write_one_of_several(hand: HandGraph) -> None:
    """`a, b = (x + 0).split(2); b.neg_()`."""
    y = hand.add(aten.add.Tensor, hand.input(4), 0)
    parts = hand.add(aten.split.Tensor, y, 2)
    hand.add(aten.neg_.default, hand.add(operator.getitem, parts, 1))
    hand.end(y)


MODELS = [add_twice, write_a_view, write_one_of_several]


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_mutating_graph_then_computes_the_same_without(make: Callable) -> None:
    mode = FakeTensorMode()
    hand = HandGraph(mode)
    hand.record = NodeRecord(source="model.py:7")
    make(hand)
    given = {"input 0": torch.randn(4)}
    before = computed(hand.graph, given)
    assert any(map(is_mutating, hand.graph.operations))
    graph = functionalised(hand.graph, mode)
    assert not any(map(is_mutating, graph.operations))
    assert computed(graph, given).keys() == before.keys()
    torch.testing.assert_close(computed(graph, given), before, rtol=0, atol=0)
    assert {node.meta["record"].source for node in graph.operations} == {"model.py:7"}


def test_written_sources_then_have_results_of_their_own() -> None:
    mode = FakeTensorMode()
    hand = HandGraph(mode)
    x, mean, fixed = hand.input(4), hand.variable("mean", 4), hand.constant("c", torch.ones(4))
    hand.add(aten.lerp_.Scalar, mean, x, 0.25)
    hand.add(aten.mul_.Tensor, x, 3)
    hand.end(hand.add(aten.add.Tensor, hand.add(aten.add.Tensor, x, mean), fixed))
    given = {"input 0": torch.randn(4), "variable mean": torch.randn(4)}
    results = computed(functionalised(hand.graph, mode), given)
    expected_x = given["input 0"] * 3
    expected_mean = torch.lerp(given["variable mean"], given["input 0"], 0.25)
    assert results.keys() == {"output 0", "input 0", "variable mean"}
    torch.testing.assert_close(results["input 0"], expected_x, rtol=0, atol=0)
    torch.testing.assert_close(results["variable mean"], expected_mean, rtol=0, atol=0)
    torch.testing.assert_close(results["output 0"], expected_x + expected_mean + 1)


def test_graph_that_mutates_nothing_then_is_the_same_object() -> None:
    mode = FakeTensorMode()
    hand = HandGraph(mode)
    graph = hand.end(hand.add(aten.sin.default, hand.input(4)))
    assert functionalised(graph, mode) is graph


def test_body_that_writes_its_parameter_then_writes_a_copy_of_it() -> None:
    mode = FakeTensorMode()
    outer, body = HandGraph(mode), HandGraph(mode)
    body.end(body.add(aten.add_.Tensor, body.input(4), 1))
    outer.graph.regions["body"] = body.graph
    region = functionalised(outer.end(outer.input(4)), mode).regions["body"]
    given = {"input 0": torch.randn(4)}
    assert list(computed(region, given)) == ["output 0"]
    assert torch.equal(computed(region, given)["output 0"], given["input 0"] + 1)


def test_memory_that_no_graph_can_express_then_is_refused_with_the_line() -> None:
    mode = FakeTensorMode()
    hand = HandGraph(mode)
    hand.record = NodeRecord(source="model.py:9")
    x = hand.input(1, 4)
    spread = hand.add(aten.expand.default, x, [3, 4])
    hand.end(hand.add(aten.resize_.default, spread, [24]))
    with pytest.raises(Error, match=r"model.py:9.*Change a copy of it \(clone\(\)\)"):
        functionalised(hand.graph, mode)
