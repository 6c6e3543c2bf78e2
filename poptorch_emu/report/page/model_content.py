"""Collects what a page shows of a model, from what is asked of it and what its IPUs would run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

import torch

from poptorch_emu.compile.compiler import Request
from poptorch_emu.compile.planning import adapt_inventory, on_system
from poptorch_emu.compile.timing import split_of, time_of
from poptorch_emu.config import CompileConfig, Recomputation, TensorLocation
from poptorch_emu.errors import Error
from poptorch_emu.log import recent_lines
from poptorch_emu.machine.system import System
from poptorch_emu.machine.tile_memory import TileMemory
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.memory.holdings import plan_memory
from poptorch_emu.plan.tiles.tile_contents import plan_tiles, tile_levels
from poptorch_emu.plan.tiles.tile_spread import spread_over_tiles
from poptorch_emu.plan.time.time_plan import TimePlan
from poptorch_emu.report.page.page_content import EngineRun, PageContent
from poptorch_emu.version import __version__

_SMALL_PROPORTION = 0.2


def content_of_model(
    request: Request, inventory: Inventory, system: System, run: EngineRun | None = None
) -> PageContent:
    """Returns all that is known of a model.

    Args:
        request: what is asked of it.
        inventory: what its IPUs would run.
        system: that it would run on.
        run: of the engine, if there was one.
    """
    inventory = on_system(inventory, system)
    memory, config = plan_memory(inventory), inventory.config
    tiles = plan_tiles(inventory, memory)
    return PageContent(
        config.model_name or type(request.model).__name__,
        config,
        time_of(request, inventory, system),
        tiles,
        inventory,
        run,
        tile_levels(inventory, memory),
        {ipu.ipu: spread_over_tiles(memory, tiles, ipu) for ipu in tiles.ipus},
        dict(_ways_out(request, inventory, system)),
        _saved_by_split(inventory, system),
        {"poptorch_emu": __version__, "torch": torch.__version__},
        datetime.now().isoformat(" ", "seconds"),
        recent_lines(),
    )


def _ways_out(
    request: Request, inventory: Inventory, system: System
) -> Iterator[tuple[str, tuple[TileMemory, TimePlan]]]:
    """Yields what the tiles hold with other settings, and how long a call takes then."""
    for name, config in _other_settings(inventory):
        try:
            other = adapt_inventory(inventory, config, request.optimizer, request.parameters)
        except Error:
            continue  # The settings don't go together with the others.
        tiles = plan_tiles(other, plan_memory(other))
        yield name, (tiles, time_of(request, other, system))


def _saved_by_split(inventory: Inventory, system: System) -> tuple[int, int] | None:
    """Returns twice as many IPUs and what the best split over them saves against that over these.

    Both are rough, since neither is compiled.
    """
    count = len(inventory.placed.ipu_ids)
    if 2 * count * inventory.config.replication_factor > system.num_ipus:
        return None
    try:
        splits = [split_of(inventory, system, num_ipus) for num_ipus in (count, 2 * count)]
    except ValueError:
        return None  # There is nothing to cut between.
    now, then = (max(stage.tile_bytes for stage in split.stages) for split in splits)
    return 2 * count, now - then


def _other_settings(inventory: Inventory) -> Iterator[tuple[str, CompileConfig]]:
    config = inventory.config
    off_chip = TensorLocation(is_on_chip=False)
    if config.is_training:
        if config.recomputation is not Recomputation.ALL:
            yield "recompute all activations", replace(config, recomputation=Recomputation.ALL)
        for kind, name in (("activation", "activations"), ("optimizer", "optimiser states")):
            locations = replace(config.locations, **{kind: off_chip})
            yield f"keep {name} in streaming memory", replace(config, locations=locations)
    proportions = tuple((ipu, _SMALL_PROPORTION) for ipu in inventory.placed.ipu_ids)
    machine = replace(config.machine, available_memory_proportion=proportions)
    yield f"give products {_SMALL_PROPORTION} of the memory", replace(config, machine=machine)
