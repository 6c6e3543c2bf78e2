"""Schedule and memory of a model before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from poptorch_emu.compile.executable import PlacedGraph
from poptorch_emu.compile.planning import schedule_of
from poptorch_emu.config import CompileConfig
from poptorch_emu.emulator.estimates import planner_of
from poptorch_emu.emulator.given_values import wrapped
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.plan.time.time_plan import TimePlan
from poptorch_emu.report.memory_report import MemoryReport
from poptorch_emu.report.schedule_report import SchedulePlan
from poptorch_emu.report.tile_report import TileReport
from poptorch_emu.schedule.schedule import Schedule
from poptorch_emu.segments.overlapped_io import transfers_of


def schedule(model: PoplarExecutor, *inputs: Any, **keywords: Any) -> SchedulePlan:
    """Returns the actions of each IPU, in their slots (exact).

    Arguments are those of `estimate`; with inputs, the model need not be compiled. `io` has no
    effect.

    Raises:
        Error: the model is not compiled and there are no inputs, or it cannot be captured.

    Example:
        >>> class Model(torch.nn.Module):
        ...     def forward(self, x):
        ...         with poptorch.Block("first", ipu_id=0):
        ...             x = torch.relu(x)
        ...         with poptorch.Block("second", ipu_id=1):
        ...             return x + 1

        >>> inference = poptorch.inferenceModel(Model(), poptorch.Options().deviceIterations(3))
        >>> inference.compile(torch.ones(3))
        >>> print(emulator.schedule(inference))
        slot   0     1     2     3
               fill  main  main  flush
        IPU 0  0F0   0F1   0F2
        IPU 1        1F0   1F1   1F2
        <BLANKLINE>
        stage 0: IPU 0, blocks first
        stage 1: IPU 1, blocks second
    """
    placed, grid, config, find_time = _made(model, inputs, keywords)
    return SchedulePlan.of(placed, grid, config, find_time() if config.strategy.table else None)


def memory(model: PoplarExecutor, *inputs: Any, **keywords: Any) -> MemoryReport:
    """Returns the bytes of each IPU on chip and in streaming memory, by content (modelled).

    Arguments are those of `estimate`; with inputs, the model need not be compiled. `io` has no
    effect.

    Raises:
        Error: the model is not compiled and no inputs are given, or it cannot be captured.
    """
    placed, _, config, _ = _made(model, inputs, keywords)
    return MemoryReport.of_plan(placed, config)


def tile_memory(model: PoplarExecutor, *inputs: Any, **keywords: Any) -> TileReport:
    """Returns the bytes that the tiles of each IPU would hold, and whether they fit (modelled).

    `docs/fidelity.md` compares such figures with published ones. Arguments are those of
    `estimate`; with inputs, the model need not be compiled. `io` has no effect.

    Raises:
        Error: the system is unknown, or the model cannot be captured.
    """
    return TileReport.of(_made(model, inputs, keywords)[0].tiles)


def _made(
    model: PoplarExecutor, inputs: tuple[Any, ...], keywords: Mapping[str, Any]
) -> tuple[PlacedGraph, Schedule, CompileConfig, Callable[[], TimePlan]]:
    """Returns the compiled parts of a model or, with inputs, planned ones, and their time plan."""
    model = wrapped(model)
    if not inputs and not keywords:
        made = model._compiled()
        return made.placed, made.schedule, made.config, model._on_device.times
    planned = planner_of(model, inputs, keywords).plan()
    found = planned.inventory
    transfers = transfers_of(found.overlapped, found.cut)
    placed = PlacedGraph(found.graph, found.placed, planned.memory, transfers, planned.tiles)
    grid = schedule_of(found.placed, found.config)
    return placed, grid, found.config, lambda: planned.time
