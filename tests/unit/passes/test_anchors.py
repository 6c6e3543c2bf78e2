"""Tensors have predictable names, and tensors that the user anchors become results."""

from __future__ import annotations

import operator
from dataclasses import replace

import torch
from support.hand_graphs import HandGraph, computed

from poptorch_emu.config import AnchorConfig
from poptorch_emu.enums import OutputMode
from poptorch_emu.ir.graph import SinkKind
from poptorch_emu.ir.record import NodeRecord, Phase
from poptorch_emu.ir.verify import verify
from poptorch_emu.passes import anchors
from poptorch_emu.update.formulas.loss_scale import FACTOR

aten = torch.ops.aten


def layers() -> tuple[HandGraph, dict[str, torch.fx.Node]]:
    """Returns a graph of two layers and a gradient, and each tensor by its expected name."""
    hand = HandGraph()
    x, y, w = hand.input(2, 3), hand.input(3, 2), hand.variable("fc.weight", 3, 3)
    hand.variable(FACTOR)
    hand.record = NodeRecord(module="net.fc")
    first = hand.add(aten.mm.default, x, w)
    second = hand.add(aten.mm.default, first, w)
    hand.record = NodeRecord(scope="user/scope")
    maximum = hand.add(aten.max.dim, second, 1)
    value, index = (hand.add(operator.getitem, maximum, number) for number in (0, 1))
    hand.record = replace(NodeRecord(module="net.fc"), phase=Phase.BACKWARD)
    gradient = hand.add(aten.mm.default, x, y)
    hand.end(value, index, gradient={"fc.weight": gradient})
    return hand, {
        "input": x,
        "input/1": y,
        "fc.weight": w,
        "net/fc/MatMul:0": first,
        "net/fc/MatMul:0/1": second,
        "user/scope/Max:0": value,
        "user/scope/Max:1": index,
        "net/fc/Backward/MatMul:0": gradient,
        "Gradient___fc.weight": gradient,
    }


def test_tensors_then_are_called_after_module_scope_and_type() -> None:
    hand, expected = layers()
    assert anchors.tensor_names(hand.graph) == expected


def test_modules_when_not_named_then_only_types_and_scopes_are() -> None:
    hand, expected = layers()
    names = anchors.tensor_names(hand.graph, names_modules=False)
    renamed = {name.replace("net/fc/", ""): node for name, node in expected.items()}
    assert names == renamed


def test_anchors_then_are_results_and_the_others_stay() -> None:
    hand, nodes = layers()
    wanted = [
        AnchorConfig("mine", "net/fc/MatMul:0", OutputMode.All),
        AnchorConfig("grad", "Gradient___fc.weight", OutputMode.Final),
        AnchorConfig("none", "nobody has this name", OutputMode.All),
    ]
    x, w = torch.randn(2, 3), torch.randn(3, 3)
    given = {
        "input 0": x,
        "input 1": torch.randn(3, 2),
        "variable fc.weight": w,
        f"variable {FACTOR}": torch.ones(()),
    }
    before = list(hand.graph.results)
    graph = verify(anchors.run(hand.graph, wanted))
    assert list(graph.results)[: len(before)] == before
    added = {sink.name: node for sink, node in graph.results if sink.kind is SinkKind.ANCHOR}
    assert added == {"mine": nodes["net/fc/MatMul:0"], "grad": nodes["Gradient___fc.weight"]}
    assert torch.equal(computed(graph, given)["anchor mine"], x @ w)


def test_no_anchors_then_nothing_changes() -> None:
    hand, _ = layers()
    before = list(hand.graph.results)
    assert list(anchors.run(hand.graph, ()).results) == before
