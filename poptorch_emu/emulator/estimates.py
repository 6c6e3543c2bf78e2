"""Estimates of the duration of a model on a real system, from shapes alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch

from poptorch_emu.compile.compiler import Request
from poptorch_emu.compile.planner import Planner
from poptorch_emu.emulator.given_values import wrapped
from poptorch_emu.emulator.loader_speed import host_work
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.machine.system import System, current_system, system_of
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.time.time_plan import HostWork
from poptorch_emu.plan.time.timeline import timeline as events_of
from poptorch_emu.report.time_report import TimeReport
from poptorch_emu.report.timeline_report import TimelineReport


def estimate(
    model: PoplarExecutor,
    *inputs: Any,
    system: str | None = None,
    io: HostWork | Iterable[Any] | None = None,
    **keywords: Any,
) -> TimeReport:
    """Returns the time of a call of `model` on a real system (modelled).

    Nothing runs and nothing is lowered, so parameters and inputs may be on the meta device. The
    model is traced; it may be compiled or not. `docs/fidelity.md` compares such figures with
    published ones.

    Args:
        model: wrapped model from `trainingModel` or `inferenceModel`.
        inputs: arguments of a call; may be left out for a compiled model.
        system: name of a system such as "bow-pod16"; by default the virtual system.
        io: work of the host, or the loader of a program, which is run for two seconds to measure
            the rows that it yields. By default the host takes no time, and the report says so.
        keywords: inputs of a call by name.

    Raises:
        Error: `system` is unknown, or the model cannot be captured.
        TypeError: the model is not wrapped, or `io` is neither host work nor a loader.
        ValueError: the loader yields no tensors.

    Example:
        >>> inference = poptorch.inferenceModel(torch.nn.Linear(256, 256))
        >>> print(emulator.estimate(inference, torch.ones(4, 256), system="bow-pod16"))
        bow-pod16, 1 x 1 Bow IPUs:
        a step of 4 rows takes ...
        ...
    """
    return TimeReport.of(
        planner_of(model, inputs, {**keywords, "system": system, "io": io}).plan().time
    )


def timeline(model: PoplarExecutor, *inputs: Any, **keywords: Any) -> TimelineReport:
    """Returns the actions of each IPU in one window, with their times and the update (modelled).

    For a long window the events are the first cycles, some in the middle, and the last ones.
    Arguments are those of `estimate`.

    Returns:
        A tuple of events, which can be printed and, by `plot()`, drawn.
    """
    return TimelineReport(events_of(planner_of(model, inputs, keywords).plan().time))


def chosen_system(name: str | None) -> System:
    """Returns the system with a name, or the virtual system if `name` is `None`."""
    return current_system() if name is None else system_of(name)


def planner_of(
    model: PoplarExecutor,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    *,
    ignores_schedule: bool = False,
) -> Planner:
    """Returns the planner of a model, the source of all figures about the machine.

    Args:
        model: wrapped model, compiled or not.
        inputs: arguments of a call; none to use those that the model was compiled for.
        keywords: inputs by name, with `system` and `io` of `estimate`.
        ignores_schedule: whether only stages are planned, which need not match a schedule.
    """
    own = {name: value for name, value in keywords.items() if name not in ("system", "io")}
    request, inventory = captured(model, inputs, own, ignores_schedule=ignores_schedule)

    def with_rows(rows: int) -> tuple[Request, Inventory]:
        def resized(value: torch.Tensor) -> torch.Tensor:
            shape = (rows * request.config.batch_factor, *value.shape[1:]) if value.dim() else ()
            return torch.empty(shape, dtype=value.dtype, device="meta")

        positional, named = request.arguments(resized)
        given = tuple(positional), named
        return captured(model, *given, ignores_schedule=ignores_schedule)

    system, host = chosen_system(keywords.get("system")), host_work(keywords.get("io"))
    return Planner(request, inventory, system, with_rows, host)


def captured(
    model: PoplarExecutor,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    *,
    ignores_schedule: bool = False,
) -> tuple[Request, Inventory]:
    """Returns the request of a model and its inventory; arguments are those of `planner_of`."""
    model = wrapped(model)
    bind = partial(model._args_parser.bind, inputs, dict(keywords)) if inputs or keywords else None
    return model._on_device.plan(bind, ignores_schedule=ignores_schedule)
