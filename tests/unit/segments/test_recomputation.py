"""Choice of operations that backward recomputes, by mode, mark and kind."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.hand_graphs import HandGraph
from support.layered_graphs import layers, placed

from poptorch_emu.config import CompileConfig, Recomputation, StrategyConfig, StrategyKind
from poptorch_emu.ir.graph import Graph
from poptorch_emu.ir.record import BlockPlace, NodeRecord, Phase
from poptorch_emu.segments.recomputation import recomputation_of, recomputed_operations

aten = torch.ops.aten
Mode = Recomputation


def chosen(graph: Graph, mode: Mode) -> list[str]:
    """Returns the names of the recomputed operations, in order."""
    found = recomputed_operations(graph, placed(graph), mode)
    return [node.name for node in graph.operations if node in found]


@pytest.mark.parametrize(
    ("kind", "ipus", "asked", "expected"),
    [
        (StrategyKind.PIPELINED, [0, 1], None, Mode.PIPELINE),
        (StrategyKind.PIPELINED, [0], None, Mode.NONE),
        (StrategyKind.SHARDED, [0, 1], None, Mode.NONE),
        (StrategyKind.PIPELINED, [0, 1], Mode.NONE, Mode.NONE),
        (StrategyKind.SHARDED, [0], Mode.ALL, Mode.ALL),
    ],
)
def test_mode_then_is_what_was_asked_or_that_of_pipelines(kind, ipus, asked, expected) -> None:
    config = CompileConfig(True, strategy=StrategyConfig(kind=kind), recomputation=asked)
    assert recomputation_of(config, placed(layers(ipus))) is expected


def test_nothing_asked_for_then_only_views_of_weights_are_made_again() -> None:
    assert chosen(layers([0, 1]), Mode.NONE) == ["t_default", "t_default_1"]


def test_everything_asked_for_then_is_all_of_forward() -> None:
    graph = layers([0, 1])
    forward = [n for n in graph.operations if n.meta["record"].phase is Phase.FORWARD]
    assert chosen(graph, Mode.ALL) == [node.name for node in forward]


def test_pipeline_then_keeps_what_leaves_a_stage_and_the_last_stage() -> None:
    # The result of the first tanh goes to the next stage; the last stage keeps all it computes.
    names = chosen(layers([0, 1]), Mode.PIPELINE)
    assert names == ["t_default", "mm_default", "t_default_1"]


@pytest.mark.parametrize("num_layers", [1, 3, 5, 12])
def test_standard_then_keeps_about_the_root_evenly(num_layers) -> None:
    hand = HandGraph()
    x = hand.input(4)
    for _ in range(num_layers):
        x = hand.add(aten.sin.default, x)
    graph = hand.end(x)
    kept = [
        index
        for index, node in enumerate(graph.operations, 1)
        if node.name not in chosen(graph, Mode.STANDARD)
    ]
    period = next(k for k in range(1, 99) if k * k > num_layers)
    # Forward does not read the last activation, so that keeping it would save nothing.
    assert kept == list(range(period, num_layers, period))


def test_standard_then_keeps_what_is_small_where_it_cuts() -> None:
    # Each block widens its input and has a shortcut around it, so few values live between blocks.
    hand = HandGraph()
    x = hand.input(4)
    small = []
    for _ in range(8):
        wide = hand.add(aten.repeat.default, x, [100])
        for _ in range(3):
            wide = hand.add(aten.sin.default, wide)
        short = hand.add(aten.narrow_copy.default, wide, 0, 0, 4)
        x = hand.add(aten.add.Tensor, x, short)
        small.append(x.name)
    graph = hand.end(x)
    again = chosen(graph, Mode.STANDARD)
    kept = [node.name for node in graph.operations if node.name not in again]
    assert len(kept) >= 4
    assert set(kept) <= set(small)


def test_standard_when_operations_are_many_then_takes_no_long_time() -> None:
    hand = HandGraph()
    x = hand.input(4)
    for _ in range(5000):
        x = hand.add(aten.sin.default, x)
    graph = hand.end(x)
    assert len(graph.operations) - len(chosen(graph, Mode.STANDARD)) == 5000 // 71


def test_norms_only_then_are_norms() -> None:
    hand = HandGraph()
    x = hand.input(2, 4)
    norm = hand.add(aten.native_layer_norm.default, x, [4], None, None, 1e-5)
    sine = hand.add(aten.sin.default, x)
    graph = hand.end(sine)
    assert recomputed_operations(graph, placed(graph), Mode.NORM_ONLY) == {norm}


# Title, threshold, edge items, width, digits, format, separator and brackets.
PRINTED = ("x", 1000, 3, 80, 4, 0, " ", "[", "]")


def test_checkpoint_and_effect_then_are_never_run_again() -> None:
    hand = HandGraph()
    x = hand.input(4)
    free = hand.add(aten.sin.default, x)
    hand.record = NodeRecord(is_checkpoint=True)
    marked = hand.add(aten.sin.default, x)
    hand.record = NodeRecord()
    strange = hand.add(torch.ops.poptorch_emu.print_tensor.default, x, *PRINTED)
    graph = hand.end(free, marked, strange)
    assert recomputed_operations(graph, placed(graph), Mode.ALL) == {free}


def test_checkpointed_call_then_its_inside_is_run_again_in_every_mode() -> None:
    hand = HandGraph()
    x = hand.input(4)
    before = hand.add(aten.sin.default, x)
    hand.record = NodeRecord(recomputed_call=1)
    inside = hand.add(aten.cos.default, before)
    result = hand.add(aten.exp.default, inside)
    hand.record = NodeRecord()
    after = hand.add(aten.neg.default, result)
    hand.record = replace(hand.record, phase=Phase.BACKWARD)
    graph = hand.end(after, hand.add(aten.mul.Tensor, inside, result))
    assert recomputed_operations(graph, placed(graph), Mode.NONE) == {inside}


def test_view_of_a_weight_that_forward_changes_then_waits_for_backward() -> None:
    for is_written in (False, True):
        hand = HandGraph()
        x, weight = hand.input(4, 4), hand.variable("w", 4, 4)
        hand.record = NodeRecord(place=BlockPlace("a", 0, 0))
        view = hand.add(aten.t.default, weight)
        product = hand.add(aten.mm.default, x, view)
        graph = hand.end(product, variable={"w": x} if is_written else {})
        expected = set() if is_written else {view}
        assert recomputed_operations(graph, placed(graph), Mode.NONE) == expected
