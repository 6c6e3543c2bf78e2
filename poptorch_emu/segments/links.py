"""Links that carry values between segments: their depth, and where waiting values are stored."""

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
    """A link: values that one segment sends to another in the same way.

    Attributes:
        producer: port of the sending segment.
        consumer: port of the receiving segment.
        nodes: values that the link carries.
        depth: largest number of micro-batches that wait in the link.
        is_remote: whether the values wait in streaming memory.
        is_shard: whether each replica stores only a part of the values.
    """

    producer: Port
    consumer: Port
    nodes: tuple[fx.Node, ...]
    depth: int
    is_remote: bool
    is_shard: bool

    @property
    def is_stash(self) -> bool:
        """Whether the values are stashed between a forward and a backward."""
        return is_stash(self.producer, self.consumer)


def plan_links(
    cut: SegmentedGraph,
    placed: Partition,
    schedule: Schedule,
    config: CompileConfig,
    replica_equal: Set[fx.Node],
) -> tuple[LinkPlan, ...]:
    """Returns the links between all segments.

    Replicated tensor sharding of activations cuts a stashed value over the replicas only if the
    value is the same on all of them. Otherwise no other replica could store a part of it.

    Args:
        cut: segments, and the values that cross between them.
        placed: assignment of the segments to IPUs.
        schedule: schedule of the window.
        config: configuration with the location of activations and the least size to cut.
        replica_equal: values that are the same on all replicas.
    """
    links = []
    for (producer, consumer), transfer in cut.transfers.items():
        depth = link_depth(schedule, producer, consumer)
        ways: dict[tuple[bool, bool], list[fx.Node]] = {}
        for node in transfer:
            is_remote = leaves_chip(config, placed, producer, consumer, node)
            is_shard = _is_cut(config, producer, consumer, node) and node in replica_equal
            ways.setdefault((is_shard, is_remote), []).append(node)
        links += [
            LinkPlan(producer, consumer, tuple(nodes), depth, is_remote, is_shard)
            for (is_shard, is_remote), nodes in sorted(ways.items(), key=lambda way: way[0])
        ]
    return tuple(links)


def cuts_stashes(config: CompileConfig) -> bool:
    """Returns whether stashed values may be divided among the replicas."""
    return config.replication_factor > 1 and config.sharding.activation is not None


def _is_cut(config: CompileConfig, producer: Port, consumer: Port, node: fx.Node) -> bool:
    threshold = config.sharding.activation
    return (
        is_stash(producer, consumer)
        and cuts_stashes(config)
        and threshold is not None
        and bool(node.meta["val"].numel() >= threshold)
    )
