"""Segments that the engine runs: those of the machine, rewritten for the host.

Recomputation changes no bit and saves memory on an IPU. The host has more memory, so the engine
keeps the activations. It recomputes only if the stashes do not fit, or if the user asks for it.
`rewrites/table.py` lists other changes to the graph; `layout/` holds changes within a segment.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from torch import fx

from poptorch_emu.config import CompileConfig, HostRecomputation
from poptorch_emu.engine.engine_graph import EngineGraph
from poptorch_emu.engine.layout.channels_last import use_channels_last
from poptorch_emu.engine.layout.copies import leave_out_copies
from poptorch_emu.engine.rewrites.table import rewrite
from poptorch_emu.environment import free_memory_bytes
from poptorch_emu.log import compiler_logger
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.schedule.joined import joined_schedule
from poptorch_emu.segments.links import plan_links
from poptorch_emu.segments.recomputation import (
    recomputation_of,
    recomputed_operations,
    views_of_weights,
)
from poptorch_emu.segments.replica_equal import replica_equal_values
from poptorch_emu.segments.segmented_graph import cut
from poptorch_emu.update.formulas.optimizer_config import OptimizerConfig
from poptorch_emu.update.parts.update_plan import plan_update

# Maximum share of free memory for stashes. Assumed: weights and other data need the rest.
_LARGEST_SHARE = 0.5


def engine_inventory(
    of_machine: Inventory, optimizer: OptimizerConfig | None, parameters: tuple[str, ...]
) -> Inventory:
    """Returns the inventory of the engine, derived from the inventory of the machine.

    Args:
        of_machine: inventory of the machine, with the machine's recomputation and whole gradients.
        optimizer: configuration of the optimiser; `None` in inference.
        parameters: names of the trainable parameters, in the optimiser's order.
    """
    config = of_machine.config
    code = EngineGraph.copy_of(of_machine, optimizer)
    inventory = of_machine
    if rewrite(code) > 0:
        schedule = joined_schedule(of_machine.schedule, code.joined)
        inventory = replace(of_machine, graph=code.graph, placed=code.placed, schedule=schedule)
    if optimizer is not None:
        inventory = _without_recomputation(inventory)
        placed, variables = inventory.placed, inventory.variables
        averages = inventory.graph.averages
        update = plan_update(
            inventory.cut, placed, variables, config, optimizer, parameters, averages
        )
        inventory = replace(inventory, update=update)
    elif inventory is not of_machine:
        inventory = _cut_again(inventory, frozenset())
    # Stochastic rounding draws its random numbers in memory order, so layouts must not change.
    if config.rounds_stochastically:
        return inventory
    segments = inventory.cut
    if not config.checks_floating_point:
        segments = leave_out_copies(segments)
    segments = use_channels_last(inventory.graph, segments)
    return replace(inventory, cut=segments)


def _without_recomputation(inventory: Inventory) -> Inventory:
    graph, placed, config = inventory.graph, inventory.placed, inventory.config
    stashing = _cut_again(inventory, views_of_weights(graph, placed))
    if not _is_recomputing(config, stashing):
        return stashing
    recomputed = recomputed_operations(graph, placed, recomputation_of(config, placed))
    return _cut_again(inventory, recomputed)


def _is_recomputing(config: CompileConfig, stashing: Inventory) -> bool:
    """Returns whether the engine recomputes activations as the machine does."""
    if config.host_recomputation is not HostRecomputation.AUTOMATIC:
        return config.host_recomputation is HostRecomputation.EXECUTED
    free_bytes = free_memory_bytes()
    num_bytes = config.replication_factor * waiting_bytes(stashing)
    if free_bytes is None or num_bytes <= _LARGEST_SHARE * free_bytes:
        return False
    compiler_logger.info(
        "The engine on this computer recomputes activations, as the IPUs do, because storing them "
        "would need %.1f GiB, more than half of the %.1f GiB of memory that are free.",
        num_bytes / 2**30,
        free_bytes / 2**30,
    )
    return True


def waiting_bytes(inventory: Inventory) -> int:
    """Returns the maximum number of bytes that all links of one replica hold together."""
    return sum(link.depth * inventory.item_bytes(link) for link in inventory.links)


def _cut_again(inventory: Inventory, recomputed: Set[fx.Node]) -> Inventory:
    graph, placed, config = inventory.graph, inventory.placed, inventory.config
    segments = cut(graph, placed, config.is_training, recomputed, inventory.schedule.kinds)
    equal_values = replica_equal_values(graph, config)
    links = plan_links(segments, placed, inventory.schedule, config, equal_values)
    return replace(inventory, cut=segments, links=links)
