"""The page of a model: all that is known about it, to be looked at in a browser."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from poptorch_emu.compile.compiler import Request
from poptorch_emu.compile.planning import adapt_inventory
from poptorch_emu.compile.timing import time_of
from poptorch_emu.config import CompileConfig, Recomputation, TensorLocation
from poptorch_emu.emulator.estimates import captured, chosen_system
from poptorch_emu.errors import Error
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.machine.system import System
from poptorch_emu.machine.tile_memory import TileMemory
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.memory.holdings import plan_memory
from poptorch_emu.plan.tiles.tile_contents import plan_tiles, tile_levels
from poptorch_emu.plan.time.time_plan import TimePlan
from poptorch_emu.report.page.page_file import to_html
from poptorch_emu.report.page.reading import EngineRun, Reading
from poptorch_emu.report.page.view_model import view_model
from poptorch_emu.version import __version__

_SMALL_PROPORTION = 0.2


def page(
    model: PoplarExecutor,
    path: str | Path,
    *inputs: Any,
    system: str | None = None,
    **keywords: Any,
) -> Path:
    """Writes one HTML file that shows all that is known about `model`, and returns its path.

    It holds summary, timeline, memory, operations, graph and options (modelled), how long the last
    call took here, and with `Options.enableProfiling` what the engine ran when (exact). It opens
    without a network; `poptorch-emu view` compares two of them.

    Args:
        model: made by `trainingModel` or `inferenceModel`.
        path: of the file, which is written anew.
        inputs: as for a call; of a compiled model they may be left out.
        system: such as "bow-pod16"; by default the virtual system.
        keywords: inputs of a call that are given by name.

    Raises:
        Error: there is no such system, or the model cannot be captured.
        OSError: the file cannot be written.
    """
    reading = reading_of(model, inputs, keywords, system)
    written = Path(path)
    written.write_text(to_html([view_model(reading)]), encoding="utf-8")
    return written


def reading_of(
    model: PoplarExecutor, inputs: tuple[Any, ...], keywords: Mapping[str, Any], system: str | None
) -> Reading:
    """Returns all that is known about `model`; arguments and errors are those of `page`."""
    request, inventory = captured(model, inputs, keywords)
    chosen = chosen_system(system)
    memory = plan_memory(inventory)
    config = inventory.config
    return Reading(
        config.model_name or type(request.model).__name__,
        config,
        time_of(request, inventory, chosen),
        plan_tiles(inventory, memory),
        inventory,
        _run(model),
        tile_levels(inventory, memory),
        dict(_ways_out(request, inventory, chosen)),
        {"poptorch_emu": __version__, "torch": torch.__version__},
        datetime.now().isoformat(" ", "seconds"),
    )


def _run(model: PoplarExecutor) -> EngineRun:
    """Returns what ran: the events are there if profiling is enabled."""
    session, seconds = model._on_device.hold.session, _step_seconds(model)
    if session is None:
        return EngineRun((), (), step_seconds=seconds)
    segments, num_left_out = session.executable.segment_names, session.num_dropped_events()
    return EngineRun(segments, session.see_events(), num_left_out, seconds)


def _step_seconds(model: PoplarExecutor) -> float | None:
    """Returns how long the last call took, from its first input to its last output."""
    counters = model.getPerfCounters()
    starts = [time for times in counters["input"] for time in times]
    ends = [time for times in counters["output_complete"] for time in times]
    return max(ends) - min(starts) if starts and ends else None


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
