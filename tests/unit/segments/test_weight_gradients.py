"""Backward in two halves: operations that can wait, and the values that they need."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from support.hand_graphs import computed
from support.layered_graphs import layers, placed, run_segments, values_for
from torch import fx

from poptorch_emu.config import Recomputation
from poptorch_emu.ir.graph import Graph, SinkKind
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.schedule import HALVES, WHOLE
from poptorch_emu.segments.recomputation import recomputed_operations
from poptorch_emu.segments.segmented_graph import cut
from poptorch_emu.segments.weight_gradients import weight_operations

aten = torch.ops.aten
F, B, R = Kind.FORWARD, Kind.BACKWARD, Kind.RECOMPUTE
I, W = HALVES  # noqa: E741, the letter of the field.
CHAINS = [[0], [0, 1], [0, 0, 1, 1], [0, 1, 2, 3], [0, 1, 0]]


def sinks_behind(node: fx.Node, graph: Graph) -> set[SinkKind]:
    """Returns the kinds of all results that depend on an operation, directly or indirectly."""
    ends: dict[fx.Node, set[SinkKind]] = {}
    for sink, result in graph.results:
        ends.setdefault(result, set()).add(sink.kind)
    found, pending = set(ends.get(node, ())), list(node.users)
    seen = set(pending)
    while pending:
        user = pending.pop()
        found |= ends.get(user, set())
        pending += [other for other in user.users if other not in seen]
        seen |= set(user.users)
    return found


@pytest.mark.parametrize("ipus", CHAINS, ids=str)
def test_operations_that_can_wait_then_lead_to_gradients_of_weights_of_their_stage(ipus) -> None:
    graph = layers(ipus)
    places = placed(graph)
    waiting = weight_operations(graph, places, set(range(places.num_stages)))
    products = [n for sink, n in graph.results if sink.kind is SinkKind.GRADIENT]
    assert waiting >= set(products)
    for node in waiting:
        assert sinks_behind(node, graph) <= {SinkKind.GRADIENT}
        assert {places.port_of[user] for user in node.users if user.op == "call_function"} <= {
            places.port_of[node]
        }
    # Gradients for the previous stage cannot wait. The first stage has no such gradients.
    for stage in range(places.num_stages):
        own = {n for n in graph.operations if places.port_of[n] == (B, stage)}
        assert (own <= waiting) == (stage == 0)


def test_nothing_waits_on_stages_that_are_not_cut() -> None:
    graph = layers([0, 1, 2, 3])
    places = placed(graph)
    waiting = weight_operations(graph, places, {2})
    assert {places.port_of[node] for node in waiting} == {(B, 2)}


KINDS = {"cut": HALVES, "cut, recomputed before": (R, *HALVES), "recomputed before": (R, *WHOLE)}


@pytest.mark.parametrize("kinds", KINDS.values(), ids=list(KINDS))
@pytest.mark.parametrize("mode", Recomputation, ids=lambda mode: mode.name)
@pytest.mark.parametrize("ipus", CHAINS, ids=str)
def test_segments_in_halves_then_compute_what_the_graph_does(ipus, mode, kinds) -> None:
    graph = layers(ipus)
    places = placed(graph)
    given = values_for(graph)
    recomputed = recomputed_operations(graph, places, mode)
    segments = cut(graph, places, True, recomputed, [kinds] * places.num_stages)
    results = run_segments(segments, places.num_stages, given)
    torch.testing.assert_close(results, computed(graph, given), rtol=0, atol=0)


@pytest.mark.parametrize("mode", Recomputation, ids=lambda mode: mode.name)
@pytest.mark.parametrize("ipus", CHAINS, ids=str)
def test_halves_then_have_the_operations_of_the_whole_each_once(ipus, mode) -> None:
    graph = layers(ipus)
    places = placed(graph)
    recomputed = recomputed_operations(graph, places, mode)
    whole = cut(graph, places, True, recomputed).segments
    halves = cut(graph, places, True, recomputed, [HALVES] * places.num_stages).segments

    def operations(segments, ports) -> Counter[str]:
        return Counter(each.name for port in ports for each in segments[port].instructions)

    for stage in range(places.num_stages):
        assert operations(halves, [(I, stage), (W, stage)]) == operations(whole, [(B, stage)])
        assert operations(halves, [(F, stage)]) == operations(whole, [(F, stage)])


@pytest.mark.parametrize("mode", Recomputation, ids=lambda mode: mode.name)
def test_values_then_wait_in_one_place_at_a_time(mode) -> None:
    graph = layers([0, 1, 2, 3])
    places = placed(graph)
    recomputed = recomputed_operations(graph, places, mode)
    transfers = cut(graph, places, True, recomputed, [HALVES] * 4).transfers
    for stage in range(4):
        to_inputs, to_weights = (transfers.get(((F, stage), (kind, stage)), []) for kind in HALVES)
        assert not set(to_inputs) & set(to_weights)


def test_stages_without_halves_then_keep_their_segments() -> None:
    graph = layers([0, 1, 2])
    places = placed(graph)
    plain = cut(graph, places, True)
    mixed = cut(graph, places, True, kinds=[WHOLE, HALVES, WHOLE])
    for port in ((F, 0), (F, 1), (F, 2), (B, 0), (B, 2)):
        one, other = plain.segments[port], mixed.segments[port]
        assert [e.name for e in one.instructions] == [e.name for e in other.instructions]
    assert [port for port in mixed.segments if port[1] == 1] == [(F, 1), (I, 1), (W, 1)]
    assert [segment.name for port, segment in mixed.segments.items() if port[1] == 1] == [
        "forward 1",
        "backward 1",
        "weights 1",
    ]
