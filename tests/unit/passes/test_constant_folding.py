"""Only values that are known at compilation are computed then."""

from __future__ import annotations

import operator

import torch
from support.hand_graphs import HandGraph, computed, targets

from poptorch_emu.ir.graph import SourceKind, source_of
from poptorch_emu.ir.verify import verify
from poptorch_emu.passes import constant_folding

aten = torch.ops.aten


def test_operations_on_constants_then_are_constants_themselves() -> None:
    hand = HandGraph()
    x, table = hand.input(4), hand.constant("table", torch.arange(4.0))
    sine = hand.add(aten.sin.default, table)
    ones = hand.add(aten.full.default, [4], 2.0, device="meta")
    known = hand.add(aten.mul.Tensor, sine, ones)
    graph = hand.end(hand.add(aten.add.Tensor, x, known), known)
    given = {"input 0": torch.randn(4)}
    before = computed(graph, given)
    verify(constant_folding.run(graph))
    assert targets(graph) == ["aten.add.Tensor"]
    kinds = [source_of(node).kind for node in graph.sources]
    assert sorted(kinds, key=str) == [SourceKind.CONSTANT, SourceKind.INPUT]
    torch.testing.assert_close(computed(graph, given), before, rtol=0, atol=0)


def test_one_of_several_results_then_is_folded_alone() -> None:
    hand = HandGraph()
    both = hand.add(aten.max.dim, hand.constant("table", torch.tensor([[1.0, 5.0, 3.0]])), 1)
    graph = hand.end(hand.add(operator.getitem, both, 1))
    before = computed(graph, {})
    verify(constant_folding.run(graph))
    assert targets(graph) == []
    assert len(graph.sources) == 1
    assert computed(graph, {}) == before == {"output 0": torch.tensor([1])}


def test_what_depends_on_inputs_variables_or_chance_then_stays() -> None:
    hand = HandGraph()
    x, weight, table = hand.input(4), hand.variable("w", 4), hand.constant("t", torch.ones(4))
    results = [
        hand.add(aten.mul.Tensor, x, table),
        hand.add(aten.mul.Tensor, weight, table),
        hand.add(aten.bernoulli.p, table, 0.5),
        hand.add(torch.ops.poptorch_emu.set_overlap_for_output.default, table, "x"),
    ]
    before = targets(hand.end(*results))
    assert targets(constant_folding.run(hand.graph)) == before


def test_constant_when_too_large_to_hold_then_is_computed_when_needed() -> None:
    for num_elements, is_folded in [(4 * 2**20, True), (4 * 2**20 + 1, False)]:
        hand = HandGraph()
        graph = hand.end(hand.add(aten.full.default, [num_elements], 1.0, device="meta"))
        assert (targets(constant_folding.run(graph)) == []) is is_folded
