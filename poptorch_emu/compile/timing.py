"""How long what a request asks for would take on a system."""

from __future__ import annotations

from poptorch_emu.compile.compiler import Request
from poptorch_emu.compile.planning import num_micro_batches, schedule_kind
from poptorch_emu.machine.system import System
from poptorch_emu.machine.time_numbers import NUMBERS, TimeNumbers
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.memory.holdings import plan_memory
from poptorch_emu.plan.time.durations import Durations
from poptorch_emu.plan.time.plan_time import Run, plan_time
from poptorch_emu.plan.time.time_plan import HostWork, TimePlan


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
    run = Run(schedule_kind(config.strategy), num_micro_batches(config), request.optimizer, io)
    return plan_time(durations, run)
