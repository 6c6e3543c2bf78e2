"""Links carry every transfer value once, and are as deep as the schedule requires."""

from __future__ import annotations

from collections import Counter

import pytest
from support.layered_graphs import ROWS, WIDTH, layers, placed

from poptorch_emu.config import (
    CompileConfig,
    LocationConfig,
    ShardingConfig,
    TensorLocation,
)
from poptorch_emu.schedule.actions import Action, Kind
from poptorch_emu.schedule.make import ScheduleKind, make_schedule
from poptorch_emu.schedule.schedule import Schedule
from poptorch_emu.segments.links import LinkPlan, plan_links
from poptorch_emu.segments.segmented_graph import cut

NUM_ELEMENTS = ROWS * WIDTH
ORDERS = [ScheduleKind.GROUPED, ScheduleKind.INTERLEAVED, ScheduleKind.SEQUENTIAL]


def planned(config: CompileConfig, equal=frozenset(), order=ScheduleKind.GROUPED, ipus=(0, 1, 2)):
    """Returns the segments, links and schedule of layers on these IPUs, eight micro-batches."""
    graph = layers(list(ipus))
    places = placed(graph)
    segments = cut(graph, places, True)
    schedule = make_schedule(order, places.ipu_of_stage, 8, True)
    equal = frozenset(graph.fx.nodes) if equal == "all" else equal
    return segments, plan_links(segments, places, schedule, config, equal), schedule


def most_waiting(schedule: Schedule, link: LinkPlan) -> int:
    """Returns the maximum number of waiting items: in each slot, all arrive before any is read."""
    waiting, most = 0, 0
    for slot in range(schedule.num_slots):
        actions: list[Action] = [a for row in schedule.rows for a in row[slot]]
        waiting += sum((a.kind, a.stage) == link.producer for a in actions)
        most = max(most, waiting)
        waiting -= sum((a.kind, a.stage) == link.consumer for a in actions)
        assert waiting >= 0, "taken out before it is put in"
    assert waiting == 0
    return most


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
@pytest.mark.parametrize("ipus", [(0, 1, 2), (0, 1, 2, 3), (0, 1, 0)], ids=str)
def test_links_then_are_as_deep_as_the_schedule_fills_them(order, ipus) -> None:
    _, links, schedule = planned(CompileConfig(True), order=order, ipus=ipus)
    assert links
    assert [link.depth for link in links] == [most_waiting(schedule, link) for link in links]


def test_links_then_carry_each_crossing_value_once() -> None:
    config = CompileConfig(
        True,
        replication_factor=2,
        sharding=ShardingConfig(activation=1),
        locations=LocationConfig(activation=TensorLocation(is_on_chip=False)),
    )
    segments, links, _ = planned(config, "all")
    carried = Counter((link.producer, link.consumer, node) for link in links for node in link.nodes)
    transfer = Counter(
        (*ends, node) for ends, nodes in segments.transfers.items() for node in nodes
    )
    assert carried == transfer


def test_stashes_then_are_from_forward_to_backward() -> None:
    _, links, _ = planned(CompileConfig(True))
    for link in links:
        kinds = (link.producer[0], link.consumer[0])
        assert link.is_stash == (kinds == (Kind.FORWARD, Kind.BACKWARD))
    assert {link.is_stash for link in links} == {True, False}


@pytest.mark.parametrize(("min_elements", "is_remote"), [(NUM_ELEMENTS, True), (9, False)])
def test_stashes_off_chip_then_are_those_of_the_size(min_elements, is_remote) -> None:
    assert NUM_ELEMENTS == 8
    location = TensorLocation(is_on_chip=False, min_elements_off_chip=min_elements)
    config = CompileConfig(True, locations=LocationConfig(activation=location))
    _, links, _ = planned(config)
    assert all(link.is_remote == (link.is_stash and is_remote) for link in links)


@pytest.mark.parametrize(
    ("replicas", "threshold", "equal", "is_cut"),
    [
        (2, NUM_ELEMENTS, "all", True),
        (2, NUM_ELEMENTS + 1, "all", False),
        (2, None, "all", False),
        (1, NUM_ELEMENTS, "all", False),
        (2, NUM_ELEMENTS, frozenset(), False),
    ],
    ids=["cut", "too small", "not asked for", "one replica", "differs"],
)
def test_stash_then_is_cut_over_the_replicas_where_it_is_asked_for(
    replicas, threshold, equal, is_cut
) -> None:
    sharding = ShardingConfig(activation=threshold)
    config = CompileConfig(True, replication_factor=replicas, sharding=sharding)
    _, links, _ = planned(config, equal)
    assert any(link.is_stash for link in links)
    assert all(link.is_shard == (link.is_stash and is_cut) for link in links)


def test_values_that_differ_in_their_way_then_go_by_links_of_their_own() -> None:
    graph = layers([0, 1])
    places = placed(graph)
    segments = cut(graph, places, True)
    schedule = make_schedule(ScheduleKind.GROUPED, places.ipu_of_stage, 8, True)
    ends = next(
        e for e in segments.transfers if e[0] == (Kind.FORWARD, 1) and e[1][0] is Kind.BACKWARD
    )
    stashed = segments.transfers[ends]
    assert len(stashed) == 3
    config = CompileConfig(True, replication_factor=2, sharding=ShardingConfig(activation=1))
    links = plan_links(segments, places, schedule, config, frozenset(stashed[:1]))
    between = [link for link in links if (link.producer, link.consumer) == ends]
    assert {link.nodes: link.is_shard for link in between} == {
        tuple(stashed[:1]): True,
        tuple(stashed[1:]): False,
    }
    assert {link.depth for link in between} == {most_waiting(schedule, between[0])}
