"""What the page shows of one run, before it becomes text and numbers: plans, and what ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from poptorch_emu.compile.fitting import Fitting
from poptorch_emu.compile.remedies import Remedy
from poptorch_emu.config import CompileConfig
from poptorch_emu.machine.tile_memory import TileMemory
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.tiles.tile_contents import Level
from poptorch_emu.plan.tiles.tile_spread import Runs
from poptorch_emu.plan.time.time_plan import TimePlan
from poptorch_emu.report.numerics_report import NumericsReport
from poptorch_emu.report.profile import RunEvent


@dataclass(frozen=True)
class EngineRun:
    """What the engine ran on this computer.

    Attributes:
        segments: name of each segment of the program.
        events: the actions of all calls, or of a long run's first and last ones.
        num_left_out: how many actions between those are left out.
        step_seconds: the median time of a call; None where it is not known.
        tracepoints: channel, name, begin and end in nanoseconds of what the user named.
    """

    segments: Sequence[str]
    events: Sequence[RunEvent]
    num_left_out: int = 0
    step_seconds: float | None = None
    tracepoints: Sequence[tuple[str, str, int, int]] = ()


@dataclass(frozen=True)
class PageContent:
    """One report: what is None or empty is not known, and the page says so.

    Attributes:
        name: of the model, as the user gave it.
        time: of a call on the machine.
        tiles: what the machine's tiles hold.
        inventory: what the IPUs run.
        run: of the engine.
        levels: what each IPU, by its number, holds at each operation; see `tile_levels`.
        spread: what each tile of an IPU, by its number, holds; see `spread_over_tiles`.
        remedies: what limits the time and what helps, best first.
        fitting: what needs less memory.
        versions: by name.
        written: date and time.
        log: (time, level, text) of each line.
        numerics: what half precision loses.
    """

    name: str
    config: CompileConfig
    time: TimePlan | None = None
    tiles: TileMemory | None = None
    inventory: Inventory | None = None
    run: EngineRun | None = None
    levels: Mapping[int, Sequence[Level]] = field(default_factory=dict)
    spread: Mapping[int, Mapping[str, Runs]] = field(default_factory=dict)
    remedies: Sequence[Remedy] = ()
    fitting: Fitting | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    written: str | None = None
    log: Sequence[tuple[str, str, str]] | None = None
    numerics: NumericsReport | None = None
