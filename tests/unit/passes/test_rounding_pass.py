"""Each rounding to float16 is random, happens once, and returns one of the two nearest numbers."""

from __future__ import annotations

import pytest
import torch
from support.hand_graphs import HandGraph, computed, targets

from poptorch_emu.ir.verify import verify
from poptorch_emu.passes import stochastic_rounding

aten = torch.ops.aten
ROUND = "poptorch_emu.round_stochastic.default"
HALF = torch.float16


def assert_beside(rounded: torch.Tensor, exact: torch.Tensor) -> None:
    """Raises unless each number is `exact` or one of the two float16 numbers beside it."""
    nearest = exact.half()
    other = torch.nextafter(nearest, (exact - nearest.double()).sign().half() * torch.inf)
    is_exact = nearest.double() == exact
    assert bool(((rounded == nearest) | (~is_exact & (rounded == other))).all())
    assert bool((rounded != nearest).any()), "nothing was rounded away from the nearest"


def test_cast_then_rounds_at_random() -> None:
    hand = HandGraph()
    graph = hand.end(hand.add(aten._to_copy.default, hand.input(1000), dtype=HALF))
    verify(stochastic_rounding.run(graph))
    assert targets(graph) == [ROUND]
    x = torch.randn(1000)
    assert_beside(computed(graph, {"input 0": x})["output 0"], x.double())


def test_operation_then_is_computed_in_float32_and_rounded_once() -> None:
    hand = HandGraph()
    x, y = hand.input(1000, dtype=HALF), hand.input(1000, dtype=HALF)
    graph = hand.end(hand.add(aten.mul.Tensor, x, y))
    verify(stochastic_rounding.run(graph))
    assert targets(graph).count(ROUND) == 1
    a, b = torch.randn(1000).half(), torch.randn(1000).half()
    # The product of two half numbers is exact in float32.
    exact = a.double() * b.double()
    assert_beside(computed(graph, {"input 0": a, "input 1": b})["output 0"], exact)


def test_operations_in_a_row_then_draw_different_numbers() -> None:
    hand = HandGraph()
    x = hand.input(1000)
    casts = [hand.add(aten._to_copy.default, x, dtype=HALF) for _ in range(3)]
    graph = stochastic_rounding.run(hand.end(*casts), first_id=40)
    assert [node.args[1] for node in graph.operations] == [40, 41, 42]
    one, two, three = computed(graph, {"input 0": torch.randn(1000)}).values()
    assert not torch.equal(one, two) and not torch.equal(two, three)


@pytest.mark.parametrize(
    "exact",
    [
        lambda hand, x: hand.add(aten.relu.default, x),
        lambda hand, x: hand.add(aten.view.default, x, [2, 4]),
        lambda hand, x: hand.add(aten.cat.default, [x, x]),
        lambda hand, x: hand.add(aten.gt.Scalar, x, 0),
        lambda hand, x: hand.add(aten.full.default, [3], 0.1, dtype=HALF, device="meta"),
        lambda hand, x: hand.add(aten._to_copy.default, x, dtype=torch.float32),
    ],
    ids=["selects", "views", "moves", "compares", "fills", "widens"],
)
def test_operation_that_never_rounds_then_stays(exact) -> None:
    hand = HandGraph()
    graph = hand.end(exact(hand, hand.input(8, dtype=HALF)))
    before, sources = targets(graph), len(graph.sources)
    stochastic_rounding.run(graph)
    assert targets(graph) == before
    assert len(graph.sources) == sources


def test_integers_made_half_then_are_rounded_as_ever() -> None:
    hand = HandGraph()
    x = hand.input(8, dtype=torch.int32)
    graph = hand.end(hand.add(aten._to_copy.default, x, dtype=HALF))
    assert targets(stochastic_rounding.run(graph)) == ["aten._to_copy.default"]


def test_numbers_of_updates_then_do_not_meet() -> None:
    ids = [stochastic_rounding.first_update_id(number) for number in range(3)]
    assert ids == sorted(set(ids))
    assert min(second - first for first, second in zip(ids, ids[1:], strict=False)) >= 16
