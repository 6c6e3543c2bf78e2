"""What a captured model would take and hold with other settings: a point of the space of plans.

A point costs some hundredths of a second: what a setting leaves as it is is found once. Only other
rows of a micro-batch need the model to be traced again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from poptorch_emu.compile.compiler import Request
from poptorch_emu.compile.limits import (
    check_exchanges,
    check_num_ipus,
    check_schedule,
    least_micro_batches,
)
from poptorch_emu.compile.planning import (
    adapt_inventory,
    on_system,
    schedule_of,
    take_inventory,
    with_schedule,
)
from poptorch_emu.compile.settings import changed
from poptorch_emu.compile.timing import split_with_operations, timed
from poptorch_emu.config import CompileConfig, StrategyKind
from poptorch_emu.errors import Error, make_error
from poptorch_emu.ir.graph import Sink, SinkKind, Source, SourceKind, source_of
from poptorch_emu.machine.ipu import Ipu
from poptorch_emu.machine.system import System, system_of
from poptorch_emu.machine.tile_memory import TileMemory
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.memory.holdings import plan_memory
from poptorch_emu.plan.memory.memory_plan import MemoryPlan
from poptorch_emu.plan.operations.operation_cost import OperationCosts
from poptorch_emu.plan.tiles.tile_contents import plan_tiles
from poptorch_emu.plan.time.durations import Durations
from poptorch_emu.plan.time.split import Split
from poptorch_emu.plan.time.time_plan import TimePlan
from poptorch_emu.schedule.partition import Partition, partition_by_stages

# Traces the model for micro-batches of so many rows.
Capture = Callable[[int], tuple[Request, Inventory]]
# What the memory of a case depends on.
_Held = tuple[Ipu, CompileConfig, frozenset[Source | Sink]]


@dataclass(frozen=True)
class Planned:
    """What one choice of settings gives.

    Attributes:
        tiles: what they hold.
        split: where the model was cut anew.
        find_time: returns how long a call takes, which is asked at most once.
    """

    tiles: TileMemory
    split: Split | None
    find_time: Callable[[], TimePlan]

    @cached_property
    def time(self) -> TimePlan:
        """How long a call takes."""
        return self.find_time()


@dataclass
class _Case:
    """A traced model, and what was found out about it for one choice or another."""

    request: Request
    inventory: Inventory
    inventories: dict[CompileConfig, Inventory] = field(default_factory=dict)
    plans: dict[_Held, tuple[MemoryPlan, TileMemory]] = field(default_factory=dict)
    costs: dict[tuple[Ipu, CompileConfig], OperationCosts] = field(default_factory=dict)
    cuts: dict[tuple[int, str], _Case] = field(default_factory=dict)
    split: Split | None = None


@dataclass
class Planner:
    """Plans of one model.

    Attributes:
        request: what was asked.
        inventory: of it.
        system: where a choice names none.
        capture: for other rows of a micro-batch; without it there are none.
    """

    request: Request
    inventory: Inventory
    system: System
    capture: Capture | None = None
    _cases: dict[int, _Case] = field(default_factory=dict)

    def plan(self, settings: Mapping[str, Any]) -> Planned:
        """Returns what one choice of settings gives; see `settings.SETTINGS`.

        Raises:
            Error: the settings do not go together, or with the model.
        """
        name = settings.get("system")
        system = self.system if name is None else system_of(name)
        case = self._of_ipus(self._of_rows(settings.get("micro_batch")), settings, system)
        inventory = case.inventory
        config = changed(inventory.config, settings, inventory.placed.ipu_ids)
        inventory = _adapted(case, config)
        if "overlap" in settings:
            crossing = _crossing(inventory, settings["overlap"].split("+"))
            inventory = replace(inventory, overlapped=crossing)
        memory, tiles = _held(case, inventory, system)

        def find_time() -> TimePlan:
            key = _without_clock(system.chip), _of_operations(config)
            durations = Durations(inventory, memory, system, known_costs=case.costs.get(key))
            case.costs[key] = durations.costs
            return timed(case.request, durations)

        return Planned(tiles, case.split, find_time)

    def cut_settings(self, num_ipus: int) -> dict[str, Any]:
        """Returns what cuts the model over so many IPUs, with enough micro-batches for that.

        If it cannot be cut, `plan` tells why.
        """
        settings: dict[str, Any] = {"num_ipus": num_ipus}
        try:
            case = self._of_ipus(self._of_rows(None), settings, self.system)
        except Error:
            return settings
        config = self.inventory.config
        name = "accumulation" if config.is_training else "device_iterations"
        given = count = config.num_micro_batches
        while count < least_micro_batches(case.inventory.placed.num_stages, config.is_training):
            count *= 2
        return settings if count == given else {**settings, name: count}

    def _of_rows(self, rows: int | None) -> _Case:
        if rows is None or rows == self.inventory.rows:
            return self._cases.setdefault(0, _Case(self.request, self.inventory))
        if rows not in self._cases:
            if self.capture is None:
                raise make_error("The model cannot be traced again for other micro-batches here.")
            self._cases[rows] = _Case(*self.capture(rows))
        return self._cases[rows]

    def _of_ipus(self, case: _Case, settings: Mapping[str, Any], system: System) -> _Case:
        """Returns the case of a model that is cut anew, if it is."""
        num_ipus = settings.get("num_ipus")
        if num_ipus is None:
            return case
        key = num_ipus, system.name
        if key not in case.cuts:
            case.cuts[key] = _cut(case, num_ipus, system)
        return case.cuts[key]


def _cut(case: _Case, num_ipus: int, system: System) -> _Case:
    """Returns a model on so many IPUs, cut where the slowest stage is fastest.

    Raises:
        Error: it cannot be cut into so many stages.
    """
    base = case.inventory
    strategy = replace(base.config.strategy, kind=StrategyKind.PIPELINED, table=None)
    config = replace(base.config, strategy=strategy)
    try:
        split, stage_of = split_with_operations(base, system, num_ipus)
    except ValueError as fault:
        raise make_error(str(fault)) from fault
    ipus = tuple(stage.ipu for stage in split.stages)
    placed = partition_by_stages(base.graph, stage_of, ipus, strategy)
    # Whether there are enough micro-batches is asked of each choice of settings, by `_from`.
    inventory = _taken(case, placed, config)
    return _Case(case.request, inventory, split=split)


def _taken(case: _Case, placed: Partition, config: CompileConfig) -> Inventory:
    base, request = case.inventory, case.request
    schedule = schedule_of(placed, config, is_short=True)
    return take_inventory(
        base.graph, placed, schedule, base.overlapped, config, request.optimizer, request.parameters
    )


def _adapted(case: _Case, config: CompileConfig) -> Inventory:
    """Returns what the IPUs run with other settings, made of that with the nearest ones."""
    key = _of_memory(config)
    if key not in case.inventories:
        bases = (*case.inventories.values(), case.inventory)
        base = min(bases, key=lambda other: _distance(other.config, config))
        case.inventories[key] = _from(base, case, config)
    return replace(case.inventories[key], config=config)


def _from(base: Inventory, case: _Case, config: CompileConfig) -> Inventory:
    """Returns an inventory for other settings; one that was cut anew keeps its stages."""
    if case.split is None:
        optimizer, parameters = case.request.optimizer, case.request.parameters
        return adapt_inventory(base, config, optimizer, parameters)
    placed = case.inventory.placed
    check_num_ipus(placed, config, is_plan=True)
    check_exchanges(case.inventory.graph, config)
    check_schedule(placed, config)
    if _segments_of(config) != _segments_of(base.config):
        return _taken(case, placed, config)
    return with_schedule(base, placed, schedule_of(placed, config, is_short=True), config)


def _segments_of(config: CompileConfig) -> tuple[object, ...]:
    """Returns the settings that the code of segments and of the update depends on."""
    shared = config.sharding if config.num_sharers > 1 else None
    return config.recomputation, config.locations, shared, config.replication_factor > 1


def _crossing(inventory: Inventory, names: Sequence[str]) -> frozenset[Source | Sink]:
    """Returns what goes between host and IPUs, of the named kinds."""
    sources = (source_of(node) for node in inventory.graph.sources)
    sinks = (sink for sink, _, _ in inventory.cut.results)
    inputs = (source for source in sources if source.kind is SourceKind.INPUT)
    results = (sink for sink in sinks if sink.kind is SinkKind.OUTPUT)
    return frozenset(
        [*(inputs if "inputs" in names else ()), *(results if "results" in names else ())]
    )


def _held(case: _Case, inventory: Inventory, system: System) -> tuple[MemoryPlan, TileMemory]:
    """Returns the plan of memory, and what tiles hold."""
    key = _without_clock(system.chip), _of_memory(inventory.config), inventory.overlapped
    if key not in case.plans:
        inventory = on_system(inventory, system)
        memory = plan_memory(inventory)
        case.plans[key] = memory, plan_tiles(inventory, memory)
    return case.plans[key]


def _of_operations(config: CompileConfig) -> CompileConfig:
    """Returns a configuration with all that the costs of operations do not depend on left out."""
    return replace(config, gradient_accumulation=1, replication_factor=1, recomputation=None)


def _of_memory(config: CompileConfig) -> CompileConfig:
    """Returns a configuration in which only whether gradients are accumulated is left of how often.

    Nor does what a pipeline holds depend on more micro-batches than it takes to fill.
    """
    return replace(
        config,
        gradient_accumulation=min(config.gradient_accumulation, 64),
        device_iterations=config.device_iterations if not config.is_training else 1,
    )


def _distance(known: CompileConfig, asked: CompileConfig) -> int:
    """Returns how much of what code and update depend on differs."""
    is_replicated = known.replication_factor > 1, asked.replication_factor > 1
    return 2 * (known.recomputation is not asked.recomputation) + len(set(is_replicated)) - 1


def _without_clock(chip: Ipu) -> Ipu:
    """Returns a chip that is equal where memory and cycles are."""
    return replace(chip, name="", clock_hz=0.0)
