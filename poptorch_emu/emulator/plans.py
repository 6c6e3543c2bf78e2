"""What a compiled model will do and hold, before anything runs; `compile` is enough."""

from __future__ import annotations

from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.report.memory_report import MemoryReport
from poptorch_emu.report.schedule_report import SchedulePlan
from poptorch_emu.report.tile_report import TileReport


def schedule(model: PoplarExecutor) -> SchedulePlan:
    """Returns what each IPU of a compiled model runs, and when (exact).

    Raises:
        Error: the model is not compiled.
    """
    return SchedulePlan.of(model._compiled())


def memory(model: PoplarExecutor) -> MemoryReport:
    """Returns what each IPU of a compiled model holds, and where (modelled).

    Raises:
        Error: the model is not compiled.
    """
    return MemoryReport.of(model._compiled().memory)


def tile_memory(model: PoplarExecutor) -> TileReport:
    """Returns what the tiles of each IPU would hold, and whether the model fits (modelled).

    How near that is to published figures is in `docs/fidelity.md`.

    Raises:
        Error: the model is not compiled.
    """
    return TileReport.of(model._compiled().tiles)
