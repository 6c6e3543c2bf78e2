"""How long what a request asks for would take on a system."""

from __future__ import annotations

from torch import fx

from poptorch_emu.compile.compiler import Request
from poptorch_emu.compile.planning import schedule_kind
from poptorch_emu.config import Recomputation
from poptorch_emu.machine.system import System
from poptorch_emu.machine.time_numbers import NUMBERS, TimeNumbers
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.memory.holdings import plan_memory
from poptorch_emu.plan.time.durations import Durations
from poptorch_emu.plan.time.split import Split, StageCosts, Tie, Unit, best_split
from poptorch_emu.plan.time.step_time import Run, plan_time
from poptorch_emu.plan.time.time_plan import HostWork, TimePlan
from poptorch_emu.plan.time.units import units_of


def time_of(
    request: Request,
    inventory: Inventory,
    system: System,
    io: HostWork | None = None,
    numbers: TimeNumbers = NUMBERS,
) -> TimePlan:
    """Returns how long a call takes.

    Args:
        request: what is asked of the model.
        inventory: of it.
        system: that it would run on.
        io: the host's own work.
        numbers: of the model of time.
    """
    return timed(request, Durations(inventory, plan_memory(inventory), system, numbers), io)


def timed(request: Request, durations: Durations, io: HostWork | None = None) -> TimePlan:
    """Returns how long a call takes whose segments take so long."""
    config = durations.inventory.config
    table = config.strategy.table
    run = Run(
        schedule_kind(config.strategy),
        config.num_micro_batches,
        request.optimizer,
        io,
        "" if table is None else table.name,
    )
    return plan_time(durations, run)


def split_of(inventory: Inventory, system: System, num_ipus: int) -> Split:
    """Returns the split whose slowest stage is fastest, among those that fit.

    Args:
        inventory: of the model, wherever its blocks are now.
        system: that it would run on.
        num_ipus: of a replica.

    Raises:
        ValueError: there are fewer units than IPUs, or no split keeps a shared weight on one IPU.
    """
    return split_with_operations(inventory, system, num_ipus)[0]


def split_with_operations(
    inventory: Inventory, system: System, num_ipus: int
) -> tuple[Split, dict[fx.Node, int]]:
    """Returns the same split, and the stage of each operation; errors are those of `split_of`."""
    durations = Durations(inventory, plan_memory(inventory), system)
    cut = units_of(durations, num_ipus)
    costs = stage_costs(durations, cut.units, num_ipus, cut.ties)
    split = best_split(costs, is_of_blocks=cut.is_of_blocks)
    stage_of_unit = [number for number, stage in enumerate(split.stages) for _ in stage.units]
    return split, {node: stage_of_unit[unit] for node, unit in cut.unit_of.items()}


def stage_costs(
    durations: Durations, units: list[Unit], num_stages: int, ties: tuple[Tie, ...] = ()
) -> StageCosts:
    """Returns what each stage would take that units are put together to."""
    config = durations.inventory.config
    recomputes = num_stages > 1 and config.recomputation in (None, Recomputation.PIPELINE)
    return StageCosts(
        units,
        num_stages,
        durations.tiles,
        config.is_training,
        recomputes and config.is_training,
        ties,
        config.num_micro_batches,
    )
