"""How long a model would take on a real system, of shapes alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from poptorch_emu.compile.compiler import Request, plan_model
from poptorch_emu.compile.limits import check_batches
from poptorch_emu.compile.planning import num_micro_batches, schedule_kind
from poptorch_emu.errors import make_error
from poptorch_emu.executor import wrapping
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.machine.system import System, current_system, system_of
from poptorch_emu.machine.time_numbers import NUMBERS, TimeNumbers
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.memory.holdings import plan_memory
from poptorch_emu.plan.time.durations import Durations
from poptorch_emu.plan.time.plan_time import Run, plan_time
from poptorch_emu.plan.time.time_plan import Event, HostWork, TimePlan
from poptorch_emu.plan.time.timeline import timeline as events_of
from poptorch_emu.report.time_report import TimeReport


def estimate(
    model: PoplarExecutor, *inputs: Any, system: str | None = None, io: HostWork | None = None
) -> TimeReport:
    """Returns how long a call of `model` would take on a real system (modelled).

    Nothing runs and nothing is lowered, so parameters and inputs may be on the meta device. The
    model is traced; it may have been compiled or not. How near such figures are to published ones
    is in `docs/fidelity.md`.

    Args:
        model: made by `trainingModel` or `inferenceModel`.
        inputs: as for a call; of a compiled model they may be left out.
        system: such as "bow-pod16"; by default the virtual system.
        io: the host's own work; by default it takes no time, and the report says so.

    Raises:
        Error: there is no such system, or the model cannot be captured.
    """
    request, inventory = captured(model, inputs)
    return TimeReport.of(time_of(request, inventory, chosen_system(system), io))


def timeline(model: PoplarExecutor, *inputs: Any, system: str | None = None) -> tuple[Event, ...]:
    """Returns what each IPU would do when, in one window, update included (modelled).

    Of a long window these are the first cycles, some of the middle and the last ones. Arguments are
    those of `estimate`.
    """
    return events_of(estimate(model, *inputs, system=system))


def chosen_system(name: str | None) -> System:
    """Returns the system of a name, or the virtual system."""
    return current_system() if name is None else system_of(name)


def captured(
    model: PoplarExecutor,
    inputs: tuple[Any, ...],
    change: Callable[[Request], Request] = lambda request: request,
) -> tuple[Request, Inventory]:
    """Returns what is asked of a model, and what its IPUs would run.

    Args:
        model: compiled or not.
        inputs: of a call; none for those that the model was compiled for.
        change: of what is asked.
    """
    with model._turn, wrapping.settled(model._user_model):
        request = change(_request(model, inputs))
        return request, plan_model(request, is_short=True)


def _request(model: PoplarExecutor, inputs: tuple[Any, ...]) -> Request:
    arguments = model._args_parser.bind(inputs, {}) if inputs else model._arguments
    if arguments is None:
        raise make_error(
            "The model is not compiled, so the shapes of its inputs are not known. Pass inputs as "
            "for a call; they may be on the meta device."
        )
    config = model._config()
    check_batches(arguments.tensors(), config)
    parameters, optimizer = dict(model._user_model.named_parameters()), None
    if model._optimizer_link is not None:
        optimizer = model._optimizer_link.config(parameters)
        if not model.isCompiled():
            model._optimizer_link.forget()
    return Request(
        model=model._model,
        arguments=arguments.rebuild_with,
        tensors=arguments.tensors(),
        config=config,
        optimizer=optimizer,
        parameters=tuple(parameters),
    )


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
    config = inventory.config
    durations = Durations(inventory, plan_memory(inventory), system, numbers)
    run = Run(schedule_kind(config.strategy), num_micro_batches(config), request.optimizer, io)
    return plan_time(durations, run)
