"""Which segments the engine runs: the machine's, or those without its recomputation.

Recomputation changes no bit and saves memory of an IPU. The host has more memory than that, and
recomputing took up to 40 % of the speed, so the engine recomputes only where the stashes would not
fit, or where the user asks for it.
"""

from __future__ import annotations

from collections.abc import Callable

from poptorch_emu.config import CompileConfig, HostRecomputation
from poptorch_emu.environment import free_memory_bytes
from poptorch_emu.log import compiler_logger
from poptorch_emu.segments.links import LinkPlan
from poptorch_emu.segments.segmented_graph import SegmentedGraph

Cut = tuple[SegmentedGraph, tuple[LinkPlan, ...]]

# Assumed: the other half is for weights, workspaces and the user's own data.
_LARGEST_SHARE = 0.5


def engine_cut(config: CompileConfig, of_machine: Cut, without: Callable[[], Cut]) -> Cut:
    """Returns what the engine runs.

    Args:
        config: with the user's choice.
        of_machine: the segments and links of the machine, which recompute what it recomputes.
        without: makes those that recompute nothing but what is free.
    """
    if config.host_recomputation is HostRecomputation.EXECUTED or not config.is_training:
        return of_machine
    stashing = without()
    if config.host_recomputation is HostRecomputation.MODELLED:
        return stashing
    free_bytes = free_memory_bytes()
    num_bytes = config.replication_factor * waiting_bytes(stashing[1])
    if free_bytes is None or num_bytes <= _LARGEST_SHARE * free_bytes:
        return stashing
    compiler_logger.info(
        "The engine recomputes, too: stashes of %.1f GiB would take more than half of the %.1f GiB "
        "that are free.",
        num_bytes / 2**30,
        free_bytes / 2**30,
    )
    return of_machine


def waiting_bytes(links: tuple[LinkPlan, ...]) -> int:
    """Returns how many bytes all links of a replica hold at most."""
    return sum(
        link.depth
        * sum(node.meta["val"].numel() * node.meta["val"].itemsize for node in link.nodes)
        for link in links
    )
