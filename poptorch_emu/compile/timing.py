"""Computes the step time of a request on a system."""

from __future__ import annotations

from torch import fx

from poptorch_emu.compile.compiler import Request
from poptorch_emu.compile.planning import schedule_kind
from poptorch_emu.config import CompileConfig, Recomputation
from poptorch_emu.machine.system import System
from poptorch_emu.machine.time_numbers import NUMBERS, TimeNumbers
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.memory.holdings import plan_memory
from poptorch_emu.plan.time.durations import Durations
from poptorch_emu.plan.time.split import Split, StageCosts, best_split
from poptorch_emu.plan.time.step_time import Run, plan_time
from poptorch_emu.plan.time.time_plan import HostWork, TimePlan
from poptorch_emu.plan.time.units import Units


def time_of(
    request: Request,
    inventory: Inventory,
    system: System,
    io: HostWork | None = None,
    numbers: TimeNumbers = NUMBERS,
) -> TimePlan:
    """Returns the plan of time of one call.

    Args:
        request: model, inputs and options of the compilation.
        inventory: the placed model.
        system: system that would run the model.
        io: work of the host; None if it takes no time.
        numbers: constants of the model of time.
    """
    return timed(request, Durations(inventory, plan_memory(inventory), system, numbers), io)


def timed(request: Request, durations: Durations, io: HostWork | None = None) -> TimePlan:
    """Returns the plan of time of one call, from the durations of its segments."""
    config = durations.inventory.config
    run = Run(
        schedule_kind(config.strategy),
        config.num_micro_batches,
        request.optimizer,
        io,
    )
    return plan_time(durations, run)


def split_into(
    durations: Durations,
    found: Units,
    num_stages: int,
    config: CompileConfig,
    *,
    has_circles: bool = True,
) -> tuple[Split, dict[fx.Node, int]]:
    """Returns the best split of some units, and the stage of each operation.

    Args:
        durations: durations of the model's operations, with any placement.
        found: the units of the model.
        num_stages: number of stages: one for each IPU, unless a table needs more.
        config: configuration of the split model.
        has_circles: whether the last stage may be on the first IPU again, so that all uses of a
            shared weight are on one IPU. Otherwise shared weights and memory do not count, because
            an IPU has several stages.

    Raises:
        ValueError: units are fewer than stages, or no split keeps a shared weight on one IPU.
    """
    recomputes = num_stages > 1 and config.recomputation in (None, Recomputation.PIPELINE)
    costs = StageCosts(
        found.units,
        num_stages,
        durations.tiles,
        config.is_training,
        recomputes and config.is_training,
        found.ties if has_circles else (),
        config.num_micro_batches,
    )
    split = best_split(costs, is_of_blocks=found.is_of_blocks, has_limit=has_circles)
    stage_of_unit = [number for number, stage in enumerate(split.stages) for _ in stage.units]
    return split, {node: stage_of_unit[unit] for node, unit in found.unit_of.items()}
