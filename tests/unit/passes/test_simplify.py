"""`passes/simplify.py` on graphs built by hand and on recorded models."""

from __future__ import annotations

import torch
from support.hand_graphs import HandGraph, computed, targets
from support.small_models import options
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.ir.verify import verify
from poptorch_emu.passes import simplify

aten = torch.ops.aten


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(3, 4, num_layers=2, batch_first=True)

    def forward(self, x: torch.Tensor):
        y = self.layer(x)[0]
        return y, poptorch.identity_loss(y.square(), "mean")


def trainings(model: poptorch.PoplarExecutor) -> list[bool]:
    """Returns, for each recurrent layer, whether it keeps values for backward."""
    target = torch.ops.poptorch_emu.rnn_layer.default
    graph = model._executable.graph
    return [bool(node.args[5]) for node in graph.operations if node.target is target]


def test_recurrent_layer_when_inferred_then_keeps_no_reserve() -> None:
    module, x = Recurrent(), torch.randn(2, 5, 3)
    inference = poptorch.inferenceModel(module, options())
    torch.testing.assert_close(inference(x)[0], module.layer(x)[0].detach())
    assert trainings(inference) == [False, False]


def test_recurrent_layer_when_trained_then_keeps_its_reserve() -> None:
    module = Recurrent()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    training = poptorch.trainingModel(module, options(), optimizer)
    training(torch.randn(2, 5, 3))
    assert trainings(training) == [True, True]
    training.destroy()


def passing_on() -> HandGraph:
    """Returns a graph of operations that pass a value on, and of similar ones that do not."""
    hand = HandGraph()
    x, weight = hand.input(2, 3), hand.variable("weight", 3, 4)
    value = hand.add(aten.detach.default, x)
    value = hand.add(aten.alias.default, value)
    value = hand.add(aten._to_copy.default, value, dtype=torch.float32)
    twice = hand.add(aten.t.default, hand.add(aten.t.default, weight))
    product = hand.add(aten.mm.default, value, twice)
    half = hand.add(aten._to_copy.default, product, dtype=torch.float16)
    once = hand.add(aten.t.default, half)
    hand.end(half, once, hand.add(aten.copy.default, product, product))
    return hand


def test_operations_that_pass_a_value_on_then_are_gone_and_results_stay() -> None:
    graph = passing_on().graph
    given = {"input 0": torch.randn(2, 3), "variable weight": torch.randn(3, 4)}
    before = computed(graph, given)
    assert verify(simplify.run(graph)) is graph
    assert targets(graph) == ["aten.mm.default", "aten._to_copy.default", "aten.t.default"]
    torch.testing.assert_close(computed(graph, given), before, rtol=0, atol=0)


def test_copy_to_another_layout_then_stays() -> None:
    hand = HandGraph()
    x = hand.input(2, 3, 4, 5)
    format = torch.channels_last
    graph = hand.end(hand.add(aten._to_copy.default, x, memory_format=format))
    assert targets(simplify.run(graph)) == ["aten._to_copy.default"]


def test_operations_and_sources_that_nobody_uses_then_are_gone() -> None:
    hand = HandGraph()
    x, unused, unread = hand.input(3), hand.input(3), hand.variable("unread", 3)
    trained, written = hand.variable("trained", 3), hand.variable("written", 3)
    hand.add(aten.exp.default, hand.add(aten.sin.default, unused))
    graph = hand.end(x, gradient={"trained": x}, variable={"written": x})
    simplify.run(graph)
    assert targets(graph) == []
    assert list(graph.sources) == [x, trained, written]
    assert unread not in graph.sources


def test_body_of_a_loop_then_is_simplified_too() -> None:
    hand = passing_on()
    outer = HandGraph()
    outer.graph.regions["body"] = hand.graph
    simplify.run(outer.end(outer.input(1)))
    assert targets(hand.graph)[0] == "aten.mm.default"
