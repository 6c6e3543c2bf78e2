"""What a model would do with other settings."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from poptorch_emu.compile.planner import Planner
from poptorch_emu.compile.settings import SETTINGS, check_name
from poptorch_emu.emulator.estimates import planner_of
from poptorch_emu.errors import Error, make_error
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.near_names import did_you_mean
from poptorch_emu.report.bottleneck_text import bottleneck_text
from poptorch_emu.report.what_if_report import Point, SweepReport


def what_if(
    model: PoplarExecutor,
    *inputs: Any,
    sweep: Mapping[str, Sequence[Any]],
    **keywords: Any,
) -> SweepReport:
    """Returns how fast a model would be with each choice of some settings (modelled).

    Args:
        model: compiled or not.
        inputs: as for a call, for the settings that the model has.
        sweep: values by setting: "accumulation", "replicas", "micro_batch" (rows),
            "device_iterations", "num_ipus" (of a replica; a model that has another number is cut as
            `plan_split` does), "split" (the same, but it is always cut anew), "schedule"
            ("grouped", "interleaved", "sequential", or one of `emulator.schedules` or its name),
            "recomputation" ("none", "standard", "norm_only", "pipeline" or "all"), "offload" (to
            streaming memory: "activation", "weight", "optimizer", "accumulator", several with +
            between them, or "nothing"), "sharding" (of the optimiser's state over the replicas),
            "proportion" (of each IPU's memory, for products), "output_mode" (by name), "overlap"
            (with compute, of "inputs", "results" or "inputs+results", on one IPU) and "system".
            Each point is the estimate of a model that has these settings, and its own elsewhere.
        keywords: as for `estimate`: `system`, `io`, and inputs that are given by name.

    Raises:
        Error: there is no such setting, or what it is given is no sequence of its values.

    Example:
        >>> model = poptorch.inferenceModel(torch.nn.Linear(64, 64))
        >>> sweep = {"micro_batch": [4, 32], "replicas": [1, 4]}
        >>> print(emulator.what_if(model, torch.ones(4, 64), sweep=sweep))
        micro_batch  replicas  ...rows/s  fits  limited by
                  4         1  ...  yes         [1]
        ...
        [1] ... of a step)
    """
    choices = checked_sweep(sweep)
    planner = planner_of(model, inputs, keywords)
    values_of_points = itertools.product(*choices.values())
    points = (_point(planner, dict(zip(choices, each, strict=True))) for each in values_of_points)
    return SweepReport(tuple(points))


def checked_sweep(sweep: Mapping[str, Iterable[Any]]) -> dict[str, tuple[Any, ...]]:
    """Returns the values to try by setting.

    Raises:
        Error: as for `what_if`.
    """
    if not isinstance(sweep, Mapping):
        raise make_error(f"sweep has values by setting, as {{'replicas': [1, 4]}}, not {sweep!r}.")
    for name, values in sweep.items():
        if name not in SETTINGS:
            raise make_error(
                f"what_if knows no setting {name!r}. Choose some of {', '.join(SETTINGS)}."
                f"{did_you_mean(name, SETTINGS)}"
            )
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise make_error(
                f"The sweep of {name!r} is {values!r}, but it lists values to try: write "
                f"{{{name!r}: [{values!r}]}}."
            )
    checked = {name: tuple(values) for name, values in sweep.items()}
    for name, values in checked.items():
        for value in values:
            check_name(name, value)
    return checked


def _point(planner: Planner, settings: Mapping[str, Any]) -> Point:
    """Returns what one choice of settings gives, or why it cannot run."""
    chosen = tuple(settings.items())
    try:
        planned = planner.plan(settings)
    except Error as error:
        return Point(chosen, None, 0.0, "", str(error.message))
    time, limit = planned.time, bottleneck_text(planned.time)
    return Point(chosen, time.throughput, time.step_seconds, planned.tiles.worst_verdict, limit)
