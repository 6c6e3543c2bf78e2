"""A captured model by other schedules, on as many IPUs: nothing is traced again."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

from torch import fx

from poptorch_emu.compile.compiler import Request
from poptorch_emu.compile.limits import check_schedule
from poptorch_emu.compile.planning import (
    schedule_of,
    take_inventory,
    with_schedule,
)
from poptorch_emu.compile.timing import stage_costs, timed
from poptorch_emu.config import CompileConfig, StrategyConfig
from poptorch_emu.machine.system import System
from poptorch_emu.machine.tile_memory import TileMemory
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.memory.holdings import plan_memory
from poptorch_emu.plan.operations.operation_cost import OperationCosts
from poptorch_emu.plan.tiles.tile_contents import SegmentFigures, plan_tiles
from poptorch_emu.plan.time.durations import Durations
from poptorch_emu.plan.time.split import fastest_stages
from poptorch_emu.plan.time.time_plan import TimePlan
from poptorch_emu.plan.time.units import units_of
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.partition import Partition, partition_by_stages
from poptorch_emu.schedule.schedule import Schedule
from poptorch_emu.schedule.tables.named import num_stages_on, placement

# What the segments of a model depend on: the IPU of each stage, and what it runs.
_Segments = tuple[tuple[int, ...], tuple[tuple[Kind, ...], ...]]


@dataclass
class Rescheduling:
    """A captured model, and what was found out about it for one schedule or another.

    Attributes:
        request: what was asked.
        inventory: of it.
        system: that it would run on.
        num_ipus: of a replica, for each schedule.
    """

    request: Request
    inventory: Inventory
    system: System
    num_ipus: int
    _costs: OperationCosts | None = None
    _cuts: dict[int, dict[fx.Node, int]] = field(default_factory=dict)
    _inventories: dict[_Segments, Inventory] = field(default_factory=dict)
    _figures: defaultdict[_Segments, SegmentFigures] = field(
        default_factory=lambda: defaultdict(SegmentFigures)
    )

    def plan(self, strategy: StrategyConfig) -> tuple[Schedule, TimePlan, TileMemory]:
        """Returns a schedule of the model, how long a call takes by it, and what tiles hold.

        Stages that the user named stay as they are if they are as many as the schedule has;
        otherwise the model is cut anew, so that the slowest stage is the fastest.

        Raises:
            Error: the schedule does not fit the number of micro-batches.
            ValueError: the model cannot be cut into so many stages.
        """
        config = self.inventory.config
        machine = replace(config.machine, version=self.system.version)
        config = replace(config, strategy=strategy, machine=machine)
        placed = self._placed(config)
        if strategy.table is None:
            check_schedule(placed, config)
        schedule = schedule_of(placed, config)
        inventory = self._inventory(placed, schedule, config)
        memory = plan_memory(inventory)
        durations = Durations(inventory, memory, self.system, known_costs=self._costs)
        time = timed(self.request, durations)
        self._costs = durations.costs
        figures = self._figures[placed.ipu_of_stage, schedule.kinds]
        return schedule, time, plan_tiles(inventory, memory, figures)

    def _inventory(self, placed: Partition, schedule: Schedule, config: CompileConfig) -> Inventory:
        """Returns what the IPUs run, made of that of a schedule with the same segments."""
        key = placed.ipu_of_stage, schedule.kinds
        if key not in self._inventories:
            self._inventories[key] = take_inventory(
                self.inventory.graph,
                placed,
                schedule,
                self.inventory.overlapped,
                config,
                self.request.optimizer,
                self.request.parameters,
            )
        return with_schedule(self._inventories[key], placed, schedule, config)

    def _placed(self, config: CompileConfig) -> Partition:
        placed, table = self.inventory.placed, config.strategy.table
        if table is None:
            if len(placed.ipu_ids) == self.num_ipus:
                return placed
            return self._cut_anew(tuple(range(self.num_ipus)), config)
        ipu_of_stage = placement(table, num_stages_on(table, self.num_ipus))
        if placed.num_stages != len(ipu_of_stage):
            return self._cut_anew(ipu_of_stage, config)
        return replace(placed, ipu_ids=tuple(sorted(set(ipu_of_stage))), ipu_of_stage=ipu_of_stage)

    def _cut_anew(self, ipu_of_stage: tuple[int, ...], config: CompileConfig) -> Partition:
        """Returns the operations on stages of which the slowest is the fastest."""
        count = len(ipu_of_stage)
        if count not in self._cuts:
            inventory = self.inventory
            durations = Durations(
                inventory, plan_memory(inventory), self.system, known_costs=self._costs
            )
            found = units_of(durations, count, least_blocks=count)
            self._costs = durations.costs
            stage_of_unit = fastest_stages(stage_costs(durations, found.units, count))
            self._cuts[count] = {node: stage_of_unit[unit] for node, unit in found.unit_of.items()}
        graph = self.inventory.graph
        return partition_by_stages(graph, self._cuts[count], ipu_of_stage, config.strategy)
