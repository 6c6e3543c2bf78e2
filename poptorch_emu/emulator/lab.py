"""The laboratory: a page with sliders for the settings of a model, which shows their effects."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from poptorch_emu.compile.planner import Planned, Planner
from poptorch_emu.compile.settings import own_settings
from poptorch_emu.emulator.estimates import planner_of
from poptorch_emu.emulator.given_values import path_and_inputs, wrapped
from poptorch_emu.emulator.what_ifs import checked_sweep
from poptorch_emu.errors import Error, make_error
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.report.page.lab_view import lab_view
from poptorch_emu.report.page.page_file import lab_to_html
from poptorch_emu.report.written_file import WrittenFile
from poptorch_emu.runtime.progress import counted
from poptorch_emu.untrusted.files import write_named

# Largest number of choices on a page, because browsers open larger pages slowly.
_MOST_CHOICES = 3000


def lab(
    model: PoplarExecutor,
    *inputs: Any,
    path: str | Path | None = None,
    sweep: Mapping[str, Sequence[Any]] | None = None,
    **keywords: Any,
) -> Path:
    """Writes a page with a slider for each setting of `model`, and returns its path (modelled).

    All choices are planned in advance, with a progress bar; the page selects a plan and needs
    neither Python nor a network. It first asks the reader how much of the time the IPUs wait, then
    shows timeline, memory and speed with an explanation. A notebook displays the page itself.

    Args:
        model: wrapped model from `trainingModel` or `inferenceModel`.
        inputs: arguments of a call; may be left out for a compiled model.
        path: path of the file, which is overwritten; may also be passed before the inputs.
        sweep: values by setting, as for `what_if`; by default a few values of important settings.
        keywords: `system` and `io` as for `estimate`, and inputs by name.

    Raises:
        Error: the system or a setting is unknown, the model cannot be captured, or there are too
            many choices.
        OSError: the file cannot be written.
        TypeError: the model is not wrapped, or no path is given.
    """
    model = wrapped(model)
    written, inputs = path_and_inputs("lab", "path", path, inputs)
    planner = planner_of(model, inputs, keywords)
    settings = checked_sweep(_usual_sweep(planner) if sweep is None else sweep)
    count = math.prod(map(len, settings.values()))
    if not 1 <= count <= _MOST_CHOICES:
        raise make_error(
            f"The sweep has {count:,} choices, but a laboratory holds 1 to {_MOST_CHOICES:,}. "
            "Give each setting at least one value, and fewer values in total."
        )
    config = planner.inventory.config
    plans = counted(_plans(planner, settings), count, "Laboratory", config.shows_progress_bar)
    name = config.model_name or type(planner.request.model).__name__
    view = lab_view(name, settings, plans, _start(planner, settings))
    write_named(written, lab_to_html(view))
    return WrittenFile(written)


def _plans(planner: Planner, settings: Mapping[str, Sequence[Any]]) -> Iterator[Planned | str]:
    """Yields the plan of each choice, without settings that the model already has."""
    own = own_settings(planner.inventory).items()
    for values in itertools.product(*settings.values()):
        chosen = [pair for pair in zip(settings, values, strict=True) if pair not in own]
        try:
            planned = planner.plan(dict(chosen))
        except Error as error:
            yield str(error.message)
        else:
            yield planned


def _usual_sweep(planner: Planner) -> dict[str, Sequence[Any]]:
    """Returns important settings of a model, each with its present value and nearby ones."""
    own, num_ipus = own_settings(planner.inventory), planner.system.num_ipus
    is_training = planner.inventory.config.is_training
    accumulation, now = own["accumulation"], own["num_ipus"]
    sweep: dict[str, Sequence[Any]] = {}
    if planner.inventory.rows:
        sweep["micro_batch"] = (planner.inventory.rows, 4 * planner.inventory.rows)
    if is_training:
        sweep["accumulation"] = sorted({max(1, accumulation // 4), accumulation, 4 * accumulation})
    sweep["num_ipus"] = sorted({count for count in (1, 2, 4, now) if count <= num_ipus})
    choices = {"schedule": ("grouped", "interleaved")}
    if is_training:
        choices |= {"recomputation": ("none", "pipeline"), "offload": ("nothing", "optimizer")}
    for name, values in choices.items():
        sweep[name] = tuple(dict.fromkeys((*values, own[name])))
    sweep["replicas"] = sorted({1, own["replicas"], 2 * own["replicas"]})
    return sweep


def _start(planner: Planner, settings: Mapping[str, Sequence[Any]]) -> list[int]:
    """Returns, for each setting, the index of the model's value, or 0 if it is not listed."""
    own = own_settings(planner.inventory)
    return [
        list(values).index(own[name]) if own.get(name) in values else 0
        for name, values in settings.items()
    ]
