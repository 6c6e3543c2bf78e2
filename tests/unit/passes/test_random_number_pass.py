"""Random operations get the counter-based generator: one state, and a number for each operation."""

from __future__ import annotations

import operator

import pytest
import torch
from support.hand_graphs import RNG, HandGraph, computed, targets
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from poptorch_emu.errors import Error
from poptorch_emu.ir.control import FOR_LOOP
from poptorch_emu.ir.graph import SourceKind, source_of
from poptorch_emu.ir.verify import verify
from poptorch_emu.passes import random_numbers

aten = torch.ops.aten
ours = torch.ops.poptorch_emu


def test_random_operations_then_draw_from_one_state_by_their_numbers() -> None:
    hand = HandGraph()
    x = hand.input(2, 500)
    noise = hand.add(aten.randn_like.default, x)
    mask = hand.add(aten.bernoulli.p, x, 0.25)
    graph = hand.end(hand.add(aten.add.Tensor, noise, x), mask, noise)
    verify(random_numbers.run(graph))
    assert targets(graph) == [
        "poptorch_emu.normal.default",
        "poptorch_emu.bernoulli.default",
        "aten.add.Tensor",
    ]
    kinds = [source_of(node).kind for node in graph.sources]
    assert kinds.count(SourceKind.RNG) == 1
    given = {"input 0": torch.randn(2, 500)}
    results = computed(graph, given)
    expected = ours.normal(RNG, 0, [2, 500], torch.float32, 0.0, 1.0)
    assert torch.equal(results["output 2"], expected)
    assert torch.equal(results["output 0"], expected + given["input 0"])
    # 5 standard deviations of the mean of 1,000 numbers.
    assert abs(results["output 1"].mean().item() - 0.25) < 5 * (0.25 * 0.75 / 1000) ** 0.5


def test_operations_of_one_kind_then_draw_different_numbers() -> None:
    hand = HandGraph()
    graph = hand.end(*(hand.add(aten.rand.default, [9], device="meta") for _ in range(3)))
    random_numbers.run(graph)
    one, two, three = computed(graph, {}).values()
    assert not torch.equal(one, two)
    assert not torch.equal(two, three)
    again = computed(graph, {})
    assert all(map(torch.equal, again.values(), (one, two, three)))


def test_graph_without_chance_then_has_no_state() -> None:
    hand = HandGraph()
    graph = hand.end(hand.add(aten.sin.default, hand.input(3)))
    random_numbers.run(graph)
    assert [source_of(node).kind for node in graph.sources] == [SourceKind.INPUT]


def test_attention_then_is_random_only_with_dropout() -> None:
    attention = aten._scaled_dot_product_flash_attention_for_cpu.default
    for dropout, is_random in [(0.0, False), (0.5, True)]:
        node = fx.Graph().call_function(attention, (None, None, None, dropout))
        assert random_numbers.is_random(node) is is_random


def test_operation_without_a_counter_based_form_then_is_refused() -> None:
    hand = HandGraph()
    x = hand.input(3)
    both = hand.add(aten.rrelu_with_noise_functional.default, x, x)
    graph = hand.end(hand.add(operator.getitem, both, 0))
    with pytest.raises(Error, match="rrelu_with_noise.*draws random numbers.*no counter-based"):
        random_numbers.run(graph)


def body_with(mode: FakeTensorMode, *, repeats: str = "") -> HandGraph:
    """Returns a body that applies dropout to its only parameter and adds noise."""
    body = HandGraph(mode)
    x = body.input(4)
    dropped = body.add(aten.bernoulli.p, x, 0.5)
    noise = body.add(aten.rand.default, [4], device="ipu:0")
    body.end(body.add(aten.add.Tensor, dropped, noise))
    body.graph.repeats = repeats
    return body


def numbers(graph) -> list[int]:
    drawing = (ours.bernoulli.default, ours.uniform.default)
    return [node.args[1] for node in graph.operations if node.target in drawing]


def test_loop_then_each_iteration_forks_the_state_and_a_repetition_draws_the_same() -> None:
    mode = FakeTensorMode()
    outer = HandGraph(mode)
    first = outer.add(aten.rand.default, [4], device="ipu:0")
    there = outer.add(FOR_LOOP, "there", 3, False, [first], [], [], [])
    back = outer.add(FOR_LOOP, "back", 3, True, [first], [], [], [])
    graph = outer.end(*(outer.add(operator.getitem, loop, 0) for loop in (there, back)))
    graph.regions["there"] = body_with(mode).graph
    graph.regions["back"] = body_with(mode, repeats="there").graph
    verify(random_numbers.run(graph))
    inside = [numbers(graph.regions[name]) for name in ("there", "back")]
    assert inside[0] == inside[1]
    assert len({*numbers(graph), *inside[0]}) == 3
    (state,) = (node for node in graph.sources if source_of(node).kind is SourceKind.RNG)
    for name, loop in [("there", there), ("back", back)]:
        assert loop.args[5] == [state]
        fork, bernoulli, uniform, _ = graph.regions[name].operations
        assert fork.target is ours.fork_rng.default
        parameter, iteration = map(source_of, fork.args)
        assert (parameter.kind, parameter.name) == (SourceKind.INPUT, "1")
        assert iteration.kind is SourceKind.ITERATION
        assert bernoulli.args[0] is uniform.args[0] is fork
