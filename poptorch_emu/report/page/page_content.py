"""The content of a page before it becomes text and numbers: plans, and the engine's run."""

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
from poptorch_emu.plan.tiles.tile_values import TileValue
from poptorch_emu.plan.time.time_plan import TimePlan
from poptorch_emu.report.numerics_report import NumericsReport
from poptorch_emu.report.profile_file import EventRow


@dataclass(frozen=True)
class EngineRun:
    """The actions that the engine ran on this computer.

    Attributes:
        segments: names of the segments of the program.
        events: actions of all calls; of a long run, those of the first and the last calls.
        num_left_out: number of actions in between that are left out.
        step_seconds: median time of a call in seconds; `None` if unknown.
        tracepoints: (channel, name, begin, end) of the user's tracepoints, in nanoseconds.
    """

    segments: Sequence[str]
    events: Sequence[EventRow]
    num_left_out: int = 0
    step_seconds: float | None = None
    tracepoints: Sequence[tuple[str, str, int, int]] = ()


@dataclass(frozen=True)
class PageContent:
    """The content of one report; None or empty values are not known, and the page says so.

    Attributes:
        name: name of the model, as the user gave it.
        time: plan of a call's time on the machine.
        tiles: plan of the memory of the machine's tiles.
        inventory: inventory of the code and tensors of the IPUs.
        run: run of the engine.
        levels: memory of each IPU, by its number, at each operation; see `tile_levels`.
        spread: content of each tile of an IPU, by its number; see `spread_over_tiles`.
        fullest: values on the fullest tile of an IPU, by its number; see `fullest_tiles`.
        remedies: causes that limit the time, with their remedies, the best first.
        fitting: changes that need less memory.
        versions: versions of the packages, by name.
        written: date and time of the report.
        log: (time, level, text) of each line of the log.
        numerics: losses by half precision.
    """

    name: str
    config: CompileConfig
    time: TimePlan | None = None
    tiles: TileMemory | None = None
    inventory: Inventory | None = None
    run: EngineRun | None = None
    levels: Mapping[int, Sequence[Level]] = field(default_factory=dict)
    spread: Mapping[int, Mapping[str, Runs]] = field(default_factory=dict)
    fullest: Mapping[int, Sequence[TileValue]] = field(default_factory=dict)
    remedies: Sequence[Remedy] = ()
    fitting: Fitting | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    written: str | None = None
    log: Sequence[tuple[str, str, str]] | None = None
    numerics: NumericsReport | None = None
