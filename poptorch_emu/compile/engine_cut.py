"""Which segments the engine runs: the machine's, or those without its recomputation.

Recomputation changes no bit and saves memory of an IPU. The host has more memory than that, and
recomputing took up to 40 % of the speed, so the engine recomputes only where the stashes would not
fit, or where the user asks for it.
"""

from __future__ import annotations

from dataclasses import replace

from poptorch_emu.config import HostRecomputation
from poptorch_emu.environment import free_memory_bytes
from poptorch_emu.log import compiler_logger
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.segments.links import plan_links
from poptorch_emu.segments.recomputation import views_of_weights
from poptorch_emu.segments.replica_equal import replica_equal_values
from poptorch_emu.segments.segmented_graph import cut

# Assumed: the other half is for weights, workspaces and the user's own data.
_LARGEST_SHARE = 0.5


def engine_inventory(of_machine: Inventory) -> Inventory:
    """Returns what the engine runs, given what the machine would."""
    config = of_machine.config
    if config.host_recomputation is HostRecomputation.EXECUTED or not config.is_training:
        return of_machine
    stashing = _without_recomputation(of_machine)
    if config.host_recomputation is HostRecomputation.MODELLED:
        return stashing
    free_bytes = free_memory_bytes()
    num_bytes = config.replication_factor * waiting_bytes(stashing)
    if free_bytes is None or num_bytes <= _LARGEST_SHARE * free_bytes:
        return stashing
    compiler_logger.info(
        "The engine recomputes, too: stashes of %.1f GiB would take more than half of the %.1f GiB "
        "that are free.",
        num_bytes / 2**30,
        free_bytes / 2**30,
    )
    return of_machine


def waiting_bytes(inventory: Inventory) -> int:
    """Returns how many bytes all links of a replica hold at most."""
    return sum(link.depth * inventory.item_bytes(link) for link in inventory.links)


def _without_recomputation(inventory: Inventory) -> Inventory:
    graph, placed, config = inventory.graph, inventory.placed, inventory.config
    segments = cut(graph, placed, config.is_training, views_of_weights(graph, placed))
    equal_values = replica_equal_values(graph, config)
    links = plan_links(segments, placed, inventory.schedule, config, equal_values)
    return replace(inventory, cut=segments, links=links)
