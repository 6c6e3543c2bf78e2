"""Collects the content of a page from a model's plans and, optionally, its run."""

from __future__ import annotations

from datetime import datetime

import torch

from poptorch_emu.compile.fitting import fitting
from poptorch_emu.compile.planner import Planner
from poptorch_emu.compile.remedies import remedies
from poptorch_emu.log import recent_lines
from poptorch_emu.module_loading import without_garbage_collection
from poptorch_emu.plan.tiles.tile_contents import tile_levels
from poptorch_emu.plan.tiles.tile_spread import spread_over_tiles
from poptorch_emu.plan.tiles.tile_values import fullest_tiles
from poptorch_emu.report.page.page_content import EngineRun, PageContent
from poptorch_emu.version import __version__


def content_of_model(planner: Planner, run: EngineRun | None = None) -> PageContent:
    """Returns the content of a page on a model.

    Args:
        planner: planner of the model on its system.
        run: run of the engine, if there was one.
    """
    now = planner.plan()
    inventory, memory, tiles = now.inventory, now.memory, now.tiles
    config = inventory.config
    # The plans create many objects and hardly any garbage, so collecting would only cost time.
    with without_garbage_collection():
        advice = remedies(planner), fitting(planner)
    return PageContent(
        config.model_name or type(planner.request.model).__name__,
        config,
        now.time,
        tiles,
        inventory,
        run,
        tile_levels(inventory, memory),
        {ipu.ipu: spread_over_tiles(memory, tiles, ipu) for ipu in tiles.ipus},
        fullest_tiles(inventory, memory, tiles),
        *advice,
        {"poptorch_emu": __version__, "torch": torch.__version__},
        datetime.now().isoformat(" ", "seconds"),
        recent_lines(),
    )
