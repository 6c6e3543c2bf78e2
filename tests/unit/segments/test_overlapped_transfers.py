"""Transfers that overlap with computation, and the messages about those that cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.hand_graphs import HandGraph
from support.layered_graphs import placed

from poptorch_emu.config import CompileConfig, MachineConfig, StrategyConfig, StrategyKind
from poptorch_emu.enums import OutputMode, OverlapMode
from poptorch_emu.errors import Error
from poptorch_emu.ir.graph import Sink, SinkKind, Source, SourceKind
from poptorch_emu.ir.marks import OVERLAP_INPUT, OVERLAP_OUTPUT
from poptorch_emu.ir.record import BlockPlace, NodeRecord
from poptorch_emu.passes import simplify
from poptorch_emu.schedule.transfers import Transfer
from poptorch_emu.segments.overlapped_io import overlap_of, transfers_of
from poptorch_emu.segments.segmented_graph import cut

aten = torch.ops.aten
LOOP = OverlapMode.OverlapDeviceIterationLoop
CONFIG = CompileConfig(
    False,
    strategy=StrategyConfig(kind=StrategyKind.SHARDED),
    machine=MachineConfig(num_io_tiles=32),
)


def annotated(mode: OverlapMode = LOOP) -> HandGraph:
    """The second input and the only output, on IPU 1, are transferred during computation."""
    hand = HandGraph()
    hand.record = NodeRecord(source="model.py:5")
    x, y = hand.input(2), hand.input(2)
    total = hand.add(aten.sin.default, x)
    hand.record = replace(hand.record, place=BlockPlace("b", 1, 1))
    total = hand.add(aten.add.Tensor, total, hand.add(OVERLAP_INPUT, y, mode.value))
    hand.end(hand.add(OVERLAP_OUTPUT, total, mode.value))
    return hand


def test_annotated_tensors_then_cross_with_their_stages() -> None:
    graph = annotated().graph
    overlapped = overlap_of(graph, CONFIG)
    assert overlapped == {
        Source(SourceKind.INPUT, "1"): LOOP,
        Sink(SinkKind.OUTPUT, "0"): LOOP,
    }
    graph = simplify.run(graph)
    transfers = transfers_of(overlapped, cut(graph, placed(graph), False))
    assert transfers == (Transfer(1, True, 1, LOOP), Transfer(0, False, 1, LOOP))


def test_no_overlap_then_asks_nothing_of_the_options() -> None:
    pipelined = replace(CONFIG, strategy=StrategyConfig(), machine=MachineConfig())
    assert overlap_of(annotated(OverlapMode.NoOverlap).graph, pipelined) == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategy": StrategyConfig()}, "not supported with poptorch.PipelinedExecution"),
        ({"machine": MachineConfig()}, "No IO tiles allocated"),
        ({"output_mode": OutputMode.Final}, "Unsupported output mode.*Final"),
        ({"output_mode": OutputMode.EveryN}, "Unsupported output mode.*EveryN"),
        ({"output_mode": OutputMode.Sum}, None),
    ],
)
def test_options_that_do_not_allow_it_then_are_named(changes, message) -> None:
    config = replace(CONFIG, **changes)
    if message is None:
        assert len(overlap_of(annotated().graph, config)) == 2
        return
    with pytest.raises(Error, match=message):
        overlap_of(annotated().graph, config)


def not_an_input(hand: HandGraph) -> None:
    hand.end(hand.add(OVERLAP_INPUT, hand.add(aten.sin.default, hand.input(2)), LOOP.value))


def a_weight(hand: HandGraph) -> None:
    hand.end(hand.add(OVERLAP_INPUT, hand.variable("w", 2), LOOP.value))


def an_input_used_twice(hand: HandGraph) -> None:
    x = hand.input(2)
    hand.end(hand.add(OVERLAP_INPUT, x, LOOP.value), hand.add(aten.sin.default, x))


def not_an_output(hand: HandGraph) -> None:
    x = hand.input(2)
    hand.add(OVERLAP_OUTPUT, x, LOOP.value)
    hand.end(x)


def an_output_twice(hand: HandGraph) -> None:
    y = hand.add(OVERLAP_OUTPUT, hand.input(2), LOOP.value)
    hand.end(y, y)


def an_output_used_on(hand: HandGraph) -> None:
    y = hand.add(OVERLAP_OUTPUT, hand.input(2), LOOP.value)
    hand.end(y, hand.add(aten.sin.default, y))


MISPLACED = {
    not_an_input: "set_overlap_for_input applied on a node which is not a tensor input",
    a_weight: "set_overlap_for_input applied on a node which is not a tensor input",
    an_input_used_twice: "must be the only op applied to an input.*input 0",
    not_an_output: "set_overlap_for_output applied on a node which is not a tensor output",
    an_output_twice: "cannot be used with a tensor that is returned twice",
    an_output_used_on: "set_overlap_for_output must be the last op applied",
}


@pytest.mark.parametrize("make", MISPLACED, ids=lambda make: make.__name__)
def test_annotation_in_a_wrong_place_then_is_refused_with_the_line(make) -> None:
    hand = HandGraph()
    hand.record = NodeRecord(source="model.py:5")
    make(hand)
    with pytest.raises(Error, match=f"{MISPLACED[make]}.*model.py:5"):
        overlap_of(hand.graph, CONFIG)
