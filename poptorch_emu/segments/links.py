"""How what crosses between segments is carried: by which links, how deep, and where items wait."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from torch import fx

from poptorch_emu.config import CompileConfig
from poptorch_emu.schedule.partition import Partition
from poptorch_emu.schedule.schedule import Port, Schedule, link_depth
from poptorch_emu.segments.placement import is_stash, leaves_chip
from poptorch_emu.segments.segmented_graph import SegmentedGraph


@dataclass(frozen=True)
class LinkPlan:
    """Values that go from one segment to another in the same way.

    Attributes:
        depth: how many micro-batches wait at most.
        is_remote: they wait in streaming memory.
        is_shard: each replica holds a part of them.
    """

    producer: Port
    consumer: Port
    nodes: tuple[fx.Node, ...]
    depth: int
    is_remote: bool
    is_shard: bool

    @property
    def is_stash(self) -> bool:
        """Whether the values wait from a forward for a backward."""
        return is_stash(self.producer, self.consumer)


def plan_links(
    cut: SegmentedGraph,
    placed: Partition,
    schedule: Schedule,
    config: CompileConfig,
    replica_equal: Set[fx.Node],
) -> tuple[LinkPlan, ...]:
    """Returns the links between all segments.

    A stash is cut over the replicas (replicated tensor sharding of activations) as far as it is the
    same on all of them; of values of its own no other replica could keep a part.

    Args:
        cut: the segments and what crosses.
        placed: which IPU runs them.
        schedule: when.
        config: where activations live, and from which size on they are cut.
        replica_equal: the values that are the same on all replicas.
    """
    links = []
    for (producer, consumer), crossing in cut.crossings.items():
        depth = link_depth(schedule, producer, consumer)
        ways: dict[tuple[bool, bool], list[fx.Node]] = {}
        for node in crossing:
            is_remote = leaves_chip(config, placed, producer, consumer, node)
            is_shard = _is_cut(config, producer, consumer, node) and node in replica_equal
            ways.setdefault((is_shard, is_remote), []).append(node)
        links += [
            LinkPlan(producer, consumer, tuple(nodes), depth, is_remote, is_shard)
            for (is_shard, is_remote), nodes in sorted(ways.items(), key=lambda way: way[0])
        ]
    return tuple(links)


def _is_cut(config: CompileConfig, producer: Port, consumer: Port, node: fx.Node) -> bool:
    threshold = config.sharding.activation
    return (
        is_stash(producer, consumer)
        and config.replication_factor > 1
        and threshold is not None
        and bool(node.meta["val"].numel() >= threshold)
    )
