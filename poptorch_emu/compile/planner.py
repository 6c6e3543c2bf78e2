"""The planner: computes memory and time of a model for a choice of settings.

Every report about the machine uses `Planner.plan`: estimates, tables, insights, comparisons of
schedules, sweeps and the laboratory. A setting changes the configuration, and the changed
configuration is planned. Plans share results only by keys that hold everything that the results
were computed from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from torch import fx

from poptorch_emu.compile.compiler import Request
from poptorch_emu.compile.limits import least_micro_batches
from poptorch_emu.compile.planning import (
    check_placed,
    on_ipus,
    place,
    schedule_of,
    segments_of,
    take_inventory,
    with_schedule,
    without_schedule,
)
from poptorch_emu.compile.settings import changed
from poptorch_emu.compile.timing import split_into, timed
from poptorch_emu.config import (
    CompileConfig,
    MachineConfig,
    PipelineOrder,
    StrategyConfig,
    StrategyKind,
)
from poptorch_emu.enums import OutputMode, OverlapMode
from poptorch_emu.errors import Error, make_error
from poptorch_emu.ir.graph import Sink, SinkKind, Source, SourceKind, record_of, source_of
from poptorch_emu.machine.system import System, system_of
from poptorch_emu.machine.tile_memory import TileMemory
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.memory.holdings import plan_memory
from poptorch_emu.plan.memory.ipu_workspace import workspaces
from poptorch_emu.plan.memory.memory_plan import Holding, MemoryPlan
from poptorch_emu.plan.tiles.tile_contents import SegmentFigures, plan_tiles
from poptorch_emu.plan.time.durations import Durations, KnownCosts
from poptorch_emu.plan.time.split import Split
from poptorch_emu.plan.time.time_plan import HostWork, OperationTime, TimePlan
from poptorch_emu.plan.time.units import Units, units_of
from poptorch_emu.schedule.partition import Partition, partition, partition_by_stages
from poptorch_emu.schedule.schedule import Port, Schedule
from poptorch_emu.schedule.tables.named import num_stages_on, placement
from poptorch_emu.segments.recomputation import recomputation_of
from poptorch_emu.segments.segmented_graph import SegmentedGraph
from poptorch_emu.trace.places.blocks import started_blocks

# Traces the model for micro-batches with this number of rows.
Capture = Callable[[int], tuple[Request, Inventory]]
# A split, and the stage of each operation.
_Split = tuple[Split, dict[fx.Node, int]]
# Memory plans of a case that are kept, for example for other systems with the same chip.
_MOST_HELD = 256
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Planned:
    """The plan of a model with some settings.

    Attributes:
        inventory: segments of the IPUs, and the values that they compute on.
        memory: memory plan of the IPUs.
        tiles: memory of the tiles of each IPU.
        split: stages of a new split; None if the model was not split again.
        find_time: computes `time`.
    """

    inventory: Inventory
    memory: MemoryPlan
    tiles: TileMemory
    split: Split | None
    find_time: Callable[[], TimePlan]

    @cached_property
    def time(self) -> TimePlan:
        """The plan of time of one call."""
        return self.find_time()


@dataclass
class _Case:
    """A traced model, and results that several plans share."""

    request: Request
    inventory: Inventory
    codes: dict[tuple[object, ...], Inventory] = field(default_factory=dict)
    segments: dict[tuple[object, ...], SegmentedGraph] = field(default_factory=dict)
    workspaces: dict[tuple[object, ...], tuple[Holding, ...]] = field(default_factory=dict)
    held: dict[tuple[object, ...], tuple[MemoryPlan, TileMemory]] = field(default_factory=dict)
    figures: dict[tuple[object, ...], SegmentFigures] = field(default_factory=dict)
    costs: KnownCosts = field(default_factory=dict)
    operations: dict[tuple[object, ...], dict[Port, tuple[OperationTime, ...]]] = field(
        default_factory=dict
    )
    partitions: dict[tuple[object, ...], Partition] = field(default_factory=dict)
    places: dict[tuple[object, ...], int] = field(default_factory=dict)
    units: dict[tuple[object, ...], tuple[Durations, Units]] = field(default_factory=dict)
    splits: dict[tuple[object, ...], _Split] = field(default_factory=dict)
    plans: dict[tuple[object, ...], Planned] = field(default_factory=dict)


@dataclass
class Planner:
    """Plans of one model.

    Attributes:
        request: model, inputs and options.
        inventory: inventory of the unchanged model, with the shortest window that shows all cycles.
        system: system for settings that do not name one.
        capture: traces the model for other micro-batches; None if it cannot be traced again.
        host: work of the user's program meanwhile; None if it takes no time.
    """

    request: Request
    inventory: Inventory
    system: System
    capture: Capture | None = None
    host: HostWork | None = None
    _cases: dict[int | None, _Case] = field(default_factory=dict)

    def plan(self, settings: Mapping[str, Any] = _NOTHING) -> Planned:
        """Returns the plan with some settings changed; see `settings.SETTINGS`.

        Raises:
            Error: the settings conflict with each other or with the model.
        """
        name = settings.get("system")
        system = self.system if name is None else system_of(name)
        case = self._case(settings.get("micro_batch"))
        config = changed(case.inventory.config, settings, case.inventory.placed.ipu_ids)
        config = replace(config, machine=replace(config.machine, version=system.version))
        placed, split = _placed(case, config, settings, system)
        crossing: Mapping[Source | Sink, OverlapMode] = case.inventory.overlapped
        if "overlap" in settings:
            names = settings["overlap"].split("+")
            crossing = {} if "nothing" in names else {**crossing}
            crossing |= _crossing(case.inventory, names)
        key = system, config, tuple(crossing.items()), _places(case, placed)
        if key not in case.plans:
            case.plans[key] = self._planned(case, placed, split, config, system, crossing)
        return case.plans[key]

    def _planned(
        self,
        case: _Case,
        placed: Partition,
        split: Split | None,
        config: CompileConfig,
        system: System,
        crossing: Mapping[Source | Sink, OverlapMode],
    ) -> Planned:
        schedule = schedule_of(placed, config, is_short=True)
        inventory = replace(_coded(case, placed, schedule, config), overlapped=crossing)
        memory, tiles = _held(case, inventory)

        def find_time() -> TimePlan:
            code = _code_key(case, config, placed, schedule), config.machine, system
            operations = case.operations.setdefault(code, {})
            durations = Durations(
                inventory, memory, system, known_costs=case.costs, known_operations=operations
            )
            return timed(case.request, durations, self.host)

        return Planned(inventory, memory, tiles, split, find_time)

    def forget_plans(self) -> None:
        """Frees finished plans, which are large. Results that other plans may share stay."""
        for case in self._cases.values():
            case.plans.clear()
            if len(case.held) > _MOST_HELD:
                case.held.clear()

    def split(self, num_ipus: int, settings: Mapping[str, Any] = _NOTHING) -> Split:
        """Returns the split that minimises the time of the slowest stage, among those that fit.

        Raises:
            Error: units are fewer than IPUs, or no split keeps a shared weight on one IPU.
        """
        case = self._case(settings.get("micro_batch"))
        config = changed(case.inventory.config, settings, case.inventory.placed.ipu_ids)
        return _cut(case, without_schedule(config), num_ipus, self.system)[0]

    def cut_settings(self, num_ipus: int) -> dict[str, Any]:
        """Returns settings that split the model over `num_ipus` IPUs, with enough micro-batches.

        For a model that cannot be split, `plan` raises an error with these settings.
        """
        config = self.inventory.config
        settings: dict[str, Any] = {"split": num_ipus}
        if config.strategy.kind is not StrategyKind.PIPELINED:
            settings["schedule"] = "grouped"
        try:
            num_stages = len(self.split(num_ipus).stages)
        except Error:
            return settings
        name = "accumulation" if config.is_training else "device_iterations"
        given = count = config.num_micro_batches
        while count < least_micro_batches(num_stages, config):
            count *= 2
        return settings if count == given else {**settings, name: count}

    def _case(self, rows: int | None) -> _Case:
        rows = None if rows == self.inventory.rows else rows
        if rows not in self._cases:
            if rows is None:
                case = _Case(self.request, self.inventory)
            elif self.capture is None:
                raise make_error(
                    "This plan cannot trace the model again, so the size of the micro-batches "
                    "must stay as it is."
                )
            else:
                case = _Case(*self.capture(rows))
            made = case.inventory
            case.codes[_code_key(case, made.config, made.placed, made.schedule)] = made
            self._cases[rows] = case
        return self._cases[rows]


def _placed(
    case: _Case, config: CompileConfig, settings: Mapping[str, Any], system: System
) -> tuple[Partition, Split | None]:
    """Returns the stages of a model, and its split if it is split again.

    The user's stages are kept, unless the settings ask for another number.
    """
    graph, table = case.inventory.graph, config.strategy.table
    num_ipus = settings.get("split", settings.get("num_ipus"))
    if "stages" in settings:
        return _of_blocks(case, config, settings["stages"], system), None
    if num_ipus is None or "split" not in settings and _has_stages(case, config, num_ipus):
        placed = on_ipus(_own_stages(case, config.strategy), config.strategy)
        return check_placed(graph, placed, config, is_plan=True), None
    split, stage_of = _cut(case, config, num_ipus, system)
    ipus = tuple(stage.ipu for stage in split.stages)
    if table is not None:
        ipus = placement(table, len(ipus))
    key = config.strategy, ipus, tuple(stage_of.values())
    if key not in case.partitions:
        case.partitions[key] = partition_by_stages(graph, stage_of, ipus, config.strategy)
    return check_placed(graph, case.partitions[key], config, is_plan=True), split


def _has_stages(case: _Case, config: CompileConfig, num_ipus: int) -> bool:
    """Returns whether the user's stages use `num_ipus` IPUs."""
    table, placed = config.strategy.table, _own_stages(case, config.strategy)
    if table is None:
        return len(placed.ipu_ids) == num_ipus
    return placed.num_stages == num_stages_on(table, num_ipus)


def _own_stages(case: _Case, strategy: StrategyConfig) -> Partition:
    """Returns the user's stages, on the IPUs of the user's blocks."""
    if (strategy,) not in case.partitions:
        case.partitions[strategy,] = partition(case.inventory.graph, strategy)
    return case.partitions[strategy,]


def _cut(case: _Case, config: CompileConfig, num_ipus: int, system: System) -> _Split:
    """Returns the split for `num_ipus` IPUs that minimises the time of the slowest stage.

    Raises:
        Error: the model cannot be split into this number of stages.
    """
    strategy = config.strategy
    if strategy.is_phased:
        raise make_error(
            "A model with phased execution cannot be split over another number of IPUs. Set a "
            'pipelined schedule, too, such as schedule="grouped".'
        )
    num_stages = num_ipus if strategy.table is None else num_stages_on(strategy.table, num_ipus)
    key = _units_key(config, num_stages, system)
    try:
        found = _units(case, config, num_stages, system)
        splitting = key, config.num_micro_batches
        if splitting not in case.splits:
            split, stage_of = split_into(
                *found, num_stages, config, has_circles=strategy.table is None
            )
            replaces_blocks = not split.is_of_blocks and _has_blocks_of_modules(case)
            case.splits[splitting] = replace(split, replaces_blocks=replaces_blocks), stage_of
        return case.splits[splitting]
    except ValueError as fault:
        raise make_error(str(fault)) from fault


def _units_key(config: CompileConfig, num_stages: int, system: System) -> tuple[object, ...]:
    has_circles = config.strategy.table is None
    return system, _with_few(without_schedule(config)), num_stages, has_circles


def _units(
    case: _Case, config: CompileConfig, num_stages: int, system: System
) -> tuple[Durations, Units]:
    """Returns the units that a split into a number of stages may separate, and their durations."""
    key, alone = _units_key(config, num_stages, system), without_schedule(config)
    if key not in case.units:
        placed = place(case.inventory.graph, alone, is_scheduled=False, is_plan=True)
        inventory = _coded(case, placed, schedule_of(placed, alone, is_short=True), alone)
        memory = plan_memory(inventory)
        durations = Durations(inventory, memory, system, known_costs=case.costs)
        # A table may need more stages than the user has blocks.
        least_blocks = 2 if config.strategy.table is None else num_stages
        if _has_blocks_of_modules(case):
            least_blocks = num_stages + 1  # The code of the split removes the blocks.
        case.units[key] = durations, units_of(durations, num_stages, least_blocks)
    return case.units[key]


def _of_blocks(
    case: _Case, config: CompileConfig, stages: Sequence[Sequence[str]], system: System
) -> Partition:
    """Returns the stages that consist of the given blocks, each on the next IPU.

    Raises:
        Error: the blocks are not those of the model.
    """
    stage_of_block = {block: stage for stage, blocks in enumerate(stages) for block in blocks}
    units = _units(case, config, 2, system)[1]
    names = [unit.name for unit in units.units]
    wrong = sorted(set(names) ^ set(stage_of_block))
    if not units.is_of_blocks or wrong or not all(stages):
        raise make_error(
            f"The stages {stages!r} should have each block of the model once, and each stage a "
            f"block. The blocks are {', '.join(names) if units.is_of_blocks else 'missing'}."
        )
    stage_of = {node: stage_of_block[names[unit]] for node, unit in units.unit_of.items()}
    table, ipus = config.strategy.table, tuple(range(len(stages)))
    if table is not None:
        try:
            ipus = placement(table, len(stages))
        except ValueError as fault:
            raise make_error(str(fault)) from fault
    placed = partition_by_stages(case.inventory.graph, stage_of, ipus, config.strategy)
    return check_placed(case.inventory.graph, placed, config, is_plan=True)


def _has_blocks_of_modules(case: _Case) -> bool:
    """Returns whether the model has blocks, and modules begin all of them (`BeginBlock`)."""
    blocks = {record_of(node).place.block_id for node in case.inventory.graph.operations} - {""}
    return bool(blocks) and blocks <= started_blocks(case.request.model)


def _coded(case: _Case, placed: Partition, schedule: Schedule, config: CompileConfig) -> Inventory:
    """Returns the code of the IPUs, shared with another plan if its key is equal."""
    key = _code_key(case, config, placed, schedule)
    if key not in case.codes:
        mode = recomputation_of(config, placed)
        cut = config.is_training, mode, schedule.kinds, _places(case, placed)
        if cut not in case.segments:
            case.segments[cut] = segments_of(case.inventory.graph, placed, schedule, config)
        case.codes[key] = take_inventory(
            case.inventory.graph,
            placed,
            schedule,
            case.inventory.overlapped,
            config,
            case.request.optimizer,
            case.request.parameters,
            case.segments[cut],
        )
    return with_schedule(case.codes[key], placed, schedule, config)


def _code_key(
    case: _Case, config: CompileConfig, placed: Partition, schedule: Schedule
) -> tuple[object, ...]:
    """Returns a key of everything that affects the code: kinds of actions, but not their order."""
    plain = replace(
        _with_few(config),
        machine=MachineConfig(),
        output_mode=OutputMode.All,
        output_return_period=1,
        strategy=_without_order(config.strategy),
    )
    return plain, recomputation_of(config, placed), schedule.kinds, _places(case, placed)


def _without_order(strategy: StrategyConfig) -> StrategyConfig:
    return replace(strategy, order=PipelineOrder.GROUPED, table=None)


def _held(case: _Case, inventory: Inventory) -> tuple[MemoryPlan, TileMemory]:
    """Returns the memory plan of the engine, and that of the tiles."""
    config, schedule = _with_few(inventory.config), inventory.schedule
    code = schedule.kinds, _places(case, inventory.placed), tuple(inventory.overlapped.items())
    key = config, schedule, code
    if key not in case.held:
        plain = replace(config, strategy=_without_order(config.strategy))
        same = plain, recomputation_of(config, inventory.placed), code
        if same not in case.workspaces:
            case.workspaces[same] = tuple(workspaces(inventory))
        memory = plan_memory(inventory, case.workspaces[same])
        figures = case.figures.setdefault(same, SegmentFigures())
        case.held[key] = memory, plan_tiles(inventory, memory, figures)
    return case.held[key]


def _with_few(config: CompileConfig) -> CompileConfig:
    """Returns a configuration with the fewest micro-batches that give the same code and memory.

    Memory and code depend on whether gradients are accumulated, not on how often. The number of
    waiting micro-batches is the schedule's. In inference, `device_iterations` are micro-batches.
    """
    return replace(
        config,
        gradient_accumulation=min(config.gradient_accumulation, 2),
        device_iterations=1,
    )


def _places(case: _Case, placed: Partition) -> int:
    """Returns a number that stands for the placement of a graph in keys."""
    ports = tuple(placed.port_of.values())
    key = placed.ipu_ids, placed.ipu_of_stage, placed.places, ports
    return case.places.setdefault(key, len(case.places))


def _crossing(inventory: Inventory, names: Sequence[str]) -> dict[Source | Sink, OverlapMode]:
    """Returns the inputs, the results or both, by `names`, as overlapping with the compute."""
    sources = (source_of(node) for node in inventory.graph.sources)
    sinks = (sink for sink, _, _ in inventory.cut.results)
    inputs = (source for source in sources if source.kind is SourceKind.INPUT)
    results = (sink for sink in sinks if sink.kind is SinkKind.OUTPUT)
    found = [*(inputs if "inputs" in names else ()), *(results if "results" in names else ())]
    return dict.fromkeys(found, OverlapMode.OverlapAccumulationLoop)
