"""Single operations are widened: their arguments and their results, and nothing else."""

from __future__ import annotations

import operator
from dataclasses import replace

import torch
from support.hand_graphs import HandGraph, computed, targets

from poptorch_emu.ir.marks import IS_WIDENED, IS_WIDENING
from poptorch_emu.ir.record import Phase
from poptorch_emu.ir.verify import verify
from poptorch_emu.passes.widening import Widener

aten = torch.ops.aten


def widened(hand: HandGraph, *nodes: torch.fx.Node) -> None:
    """Widens `nodes`; results are rounded by a plain cast."""

    def rounded(source: torch.fx.Node, like: torch.fx.Node) -> torch.fx.Node:
        value = torch.empty_like(like.meta["val"], dtype=torch.float16)
        return hand.graph.add_operation(
            aten._to_copy.default, (source,), {"dtype": torch.float16}, value, hand.record
        )

    widener = Widener(hand.graph, rounded)
    for node in nodes:
        widener.widen(node)
    verify(hand.graph)


def test_value_that_two_operations_read_then_is_cast_once() -> None:
    hand = HandGraph()
    x, y = hand.input(8, dtype=torch.float16), hand.input(8, dtype=torch.float16)
    total = hand.add(aten.add.Tensor, x, y)
    product = hand.add(aten.mul.Tensor, x, y)
    hand.end(total, product)
    widened(hand, total, product)
    casts = [node for node in hand.graph.operations if node.target is aten._to_copy.default]
    assert len(casts) == 2 + 2
    assert all(node.meta.get(IS_WIDENING) for node in casts)
    assert total.meta[IS_WIDENED] and product.meta[IS_WIDENED]
    a, b = torch.randn(8).half(), torch.randn(8).half()
    results = computed(hand.graph, {"input 0": a, "input 1": b})
    assert torch.equal(results["output 0"], (a.double() + b.double()).half())
    # The product of two half numbers is exact in float32.
    assert torch.equal(results["output 1"], (a.double() * b.double()).half())


def test_value_that_forward_and_backward_read_then_is_cast_in_each() -> None:
    hand = HandGraph()
    x = hand.input(8, dtype=torch.float16)
    forward = hand.add(aten.add.Tensor, x, x)
    hand.record = replace(hand.record, phase=Phase.BACKWARD)
    backward = hand.add(aten.mul.Tensor, x, x)
    hand.end(forward, backward)
    widened(hand, forward, backward)
    assert targets(hand.graph).count("aten._to_copy.default") == 2 + 2


def test_results_of_several_types_then_only_the_half_ones_are_rounded() -> None:
    hand = HandGraph()
    best = hand.add(aten.max.dim, hand.input(2, 5, dtype=torch.float16), 1)
    values, indices = (hand.add(operator.getitem, best, index) for index in (0, 1))
    hand.end(values, indices)
    widened(hand, best)
    x = torch.randn(2, 5).half()
    results = computed(hand.graph, {"input 0": x})
    assert torch.equal(results["output 0"], x.max(1).values)
    assert torch.equal(results["output 1"], x.max(1).indices)
    assert best.meta["val"][0].dtype is torch.float32
    assert best.meta["val"][1].dtype is torch.int64


def test_type_among_the_arguments_then_is_widened_too() -> None:
    hand = HandGraph()
    total = hand.add(aten.sum.dim_IntList, hand.input(4, 9), [1], dtype=torch.float16)
    hand.end(total)
    widened(hand, total)
    assert total.kwargs["dtype"] is torch.float32
    x = torch.randn(4, 9)
    assert torch.equal(computed(hand.graph, {"input 0": x})["output 0"], x.sum(1).half())
