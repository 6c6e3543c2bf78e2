"""Segments together compute what the graph computes, and each value crosses once."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from support.hand_graphs import HandGraph, computed
from support.layered_graphs import layers, placed, run_segments, values_for

from poptorch_emu.config import Recomputation
from poptorch_emu.ir.graph import operation_of
from poptorch_emu.ir.record import BlockPlace, NodeRecord
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.segments.recomputation import recomputed_operations
from poptorch_emu.segments.segmented_graph import cut

aten = torch.ops.aten
F, B = Kind.FORWARD, Kind.BACKWARD

CHAINS = [[0], [0, 1], [0, 0, 1, 1], [0, 1, 2, 3], [0, 1, 0]]


@pytest.mark.parametrize("mode", Recomputation, ids=lambda mode: mode.name)
@pytest.mark.parametrize("ipus", CHAINS, ids=str)
def test_segments_then_compute_what_the_graph_does(ipus, mode) -> None:
    graph = layers(ipus)
    places = placed(graph)
    given = values_for(graph)
    expected = computed(graph, given)
    segments = cut(graph, places, True, recomputed_operations(graph, places, mode))
    results = run_segments(segments, places.num_stages, given)
    torch.testing.assert_close(results, expected, rtol=0, atol=0)


@pytest.mark.parametrize("ipus", CHAINS, ids=str)
def test_inference_then_has_forward_segments_only(ipus) -> None:
    graph = layers(ipus, is_training=False)
    places = placed(graph)
    segments = cut(graph, places, False)
    assert set(segments.segments) == {(F, stage) for stage in range(places.num_stages)}
    given = values_for(graph)
    assert torch.equal(
        run_segments(segments, places.num_stages, given)["output 0"],
        computed(graph, given)["output 0"],
    )


@pytest.mark.parametrize("ipus", CHAINS, ids=str)
def test_value_that_another_segment_uses_then_crosses_to_it_once(ipus) -> None:
    graph = layers(ipus)
    places = placed(graph)
    transfers = cut(graph, places, True).transfers
    arrivals = Counter((node, end) for (_, end), nodes in transfers.items() for node in nodes)
    needed = {
        (value, places.port_of[user])
        for user in graph.operations
        for value in user.all_input_nodes
        if value in places.port_of and places.port_of[value] != places.port_of[user]
    }
    # Each value that backward gets from its own forward was received or computed by this forward.
    assert set(arrivals) >= needed
    assert set(arrivals.values()) <= {1}
    for value, consumer in set(arrivals) - needed:
        assert consumer == places.port_of[value] or (value, (B, consumer[1])) in needed


def test_input_of_a_stage_then_waits_there_and_not_in_the_stage_before() -> None:
    graph = layers([0, 1, 2])
    transfers = cut(graph, placed(graph), True).transfers
    (activation,) = transfers[(F, 0), (F, 1)]
    assert activation in transfers[(F, 1), (B, 1)]
    assert ((F, 0), (B, 1)) not in transfers


def test_operation_that_is_run_again_then_is_in_both_segments_and_does_not_cross() -> None:
    graph = layers([0, 1])
    places = placed(graph)
    recomputed = recomputed_operations(graph, places, Recomputation.ALL)
    segments = cut(graph, places, True, recomputed)
    for stage in (0, 1):
        forward = {i.node for i in segments.segments[F, stage].instructions}
        backward = {i.node for i in segments.segments[B, stage].instructions}
        transfer = segments.transfers.get(((F, stage), (B, stage)), [])
        crossed = {operation_of(node) for node in transfer}
        assert forward & backward <= recomputed
        assert forward & backward
        assert not crossed & recomputed & forward


def test_variable_that_forward_changes_then_is_assigned_where_it_is_read() -> None:
    hand = HandGraph()
    x, mean = hand.input(3), hand.variable("mean", 3)
    hand.record = NodeRecord(place=BlockPlace("a", 0, 0))
    y = hand.add(aten.add.Tensor, x, mean)
    hand.record = NodeRecord(place=BlockPlace("b", 1, 1))
    z = hand.add(aten.mul.Tensor, y, 2)
    graph = hand.end(z, variable={"mean": x})
    segments = cut(graph, placed(graph), False)
    homes = {str(sink): port for sink, port, _ in segments.results}
    assert homes == {"output 0": (F, 1), "variable mean": (F, 0)}


def test_source_that_two_stages_read_then_is_loaded_by_both() -> None:
    graph = layers([0, 1])
    segments = cut(graph, placed(graph), True).segments
    loads = {port: {str(source) for source in s.loads} for port, s in segments.items()}
    # Backward reads the weight again, and also the input of stage 0, which is available everywhere.
    assert loads[F, 0] == {"input 0", "variable w0"}
    assert loads[B, 1] == {"variable w1"}
