"""Estimates of a model with other settings."""

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
    """Returns the speed of a model under each combination of some settings (modelled).

    Args:
        model: wrapped model, compiled or not.
        inputs: arguments of a call, for the settings that the model has.
        sweep: values by setting: "accumulation", "replicas", "micro_batch" (rows),
            "device_iterations", "num_ipus" (of a replica; a model with another number is cut as by
            `plan_split`), "split" (the same, but the model is always cut anew), "stages"
            (the blocks of each IPU, such as [["first", "second"], ["third"]]), "schedule"
            ("grouped", "interleaved", "sequential", or one of `emulator.schedules` or its name),
            "recomputation" ("none", "standard", "norm_only", "pipeline" or "all"), "offload" (to
            streaming memory: "activation", "weight", "optimizer", "accumulator", several with +
            between them, or "nothing"), "sharding" (of the optimiser's state over the replicas),
            "proportion" (of each IPU's memory, for products), "output_mode" (by name), "overlap"
            (with compute, of "inputs", "results" or "inputs+results", on one IPU) and "system".
            Each point is the estimate of a model with these settings, and its own otherwise.
        keywords: `system` and `io` as for `estimate`, and inputs by name.

    Raises:
        Error: a setting is unknown, or its values are not a sequence of valid values.

    Example:
        >>> model = poptorch.inferenceModel(torch.nn.Linear(64, 64))
        >>> sweep = {"micro_batch": [4, 32], "replicas": [1, 4]}
        >>> print(emulator.what_if(model, torch.ones(4, 64), sweep=sweep))
        micro_batch  replicas     rows/s ...likely  fits  limited by
                  4         1 ... to ...   yes         [1]
        ...
    """
    choices = checked_sweep(sweep)
    planner = planner_of(model, inputs, keywords)
    values_of_points = itertools.product(*choices.values())
    points = (_point(planner, dict(zip(choices, each, strict=True))) for each in values_of_points)
    return SweepReport(tuple(points))


def checked_sweep(sweep: Mapping[str, Iterable[Any]]) -> dict[str, tuple[Any, ...]]:
    """Returns the values of each setting as tuples.

    Raises:
        Error: a setting or a value is invalid, as for `what_if`.
    """
    if not isinstance(sweep, Mapping):
        raise make_error(
            "sweep must be a dictionary from settings to lists of values, such as "
            f"{{'replicas': [1, 4]}}, not {sweep!r}."
        )
    for name, values in sweep.items():
        if name not in SETTINGS:
            raise make_error(
                f"what_if has no setting {name!r}. Choose from "
                f"{', '.join(SETTINGS)}.{did_you_mean(name, SETTINGS)}"
            )
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise make_error(
                f"The sweep of {name!r} is {values!r}, but must be a list of values to try: write "
                f"{{{name!r}: [{values!r}]}}."
            )
    checked = {name: tuple(values) for name, values in sweep.items()}
    for name, values in checked.items():
        for value in values:
            check_name(name, value)
    return checked


def _point(planner: Planner, settings: Mapping[str, Any]) -> Point:
    """Returns the estimate of one combination of settings, or the reason why it cannot run."""
    chosen = tuple(settings.items())
    try:
        planned = planner.plan(settings)
    except Error as error:
        return Point(chosen, None, 0.0, "", str(error.message))
    time, limit = planned.time, bottleneck_text(planned.time)
    verdict = planned.tiles.worst_verdict
    return Point(chosen, time.throughput, time.step_seconds, verdict, limit, time.speed)
