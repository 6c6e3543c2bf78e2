"""The laboratory: one page on which settings of a model are moved, and what follows is seen."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from poptorch_emu.compile.planner import Planned, Planner
from poptorch_emu.emulator.estimates import planner_of
from poptorch_emu.emulator.given_values import path_and_inputs, wrapped
from poptorch_emu.emulator.what_ifs import checked_sweep
from poptorch_emu.errors import Error, make_error
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.report.page.lab_view import lab_view
from poptorch_emu.report.page.page_file import lab_to_html
from poptorch_emu.report.written_file import WrittenFile
from poptorch_emu.runtime.progress import counted

# More choices make a page that browsers open slowly.
_MOST_CHOICES = 3000


def lab(
    model: PoplarExecutor,
    *inputs: Any,
    path: str | Path | None = None,
    sweep: Mapping[str, Sequence[Any]] | None = None,
    system: str | None = None,
    **keywords: Any,
) -> Path:
    """Writes a page with a slider for each setting of `model`, and returns its path (modelled).

    The plans of all choices are made beforehand, with a progress bar; the page chooses among them
    and needs neither Python nor a network. It asks first how much of the time the IPUs wait, then
    shows timeline, memory and speed, and says why. A notebook shows the page itself.

    Args:
        model: made by `trainingModel` or `inferenceModel`.
        inputs: as for a call; of a compiled model they may be left out.
        path: of the file, which is written anew. It may also stand before the inputs.
        sweep: values by setting, as for `what_if`; by default some of each that matter.
        system: such as "bow-pod16"; by default the virtual system.
        keywords: inputs of a call that are given by name.

    Raises:
        Error: there is no such system or setting, the model cannot be captured, or there are too
            many choices.
        OSError: the file cannot be written.
        TypeError: the model is not wrapped, or no path is given.
    """
    model = wrapped(model)
    written, inputs = path_and_inputs("lab", "path", path, inputs)
    planner = planner_of(model, inputs, keywords, system)
    settings = checked_sweep(_usual_sweep(planner) if sweep is None else sweep)
    count = math.prod(map(len, settings.values()))
    if not 1 <= count <= _MOST_CHOICES:
        raise make_error(
            f"The sweep has {count:,} choices, but a laboratory holds 1 to {_MOST_CHOICES:,}. "
            "Give each setting one value or more, and fewer in all."
        )
    config = planner.inventory.config
    plans = counted(_plans(planner, settings), count, "Laboratory", config.shows_progress_bar)
    name = config.model_name or type(planner.request.model).__name__
    view = lab_view(name, settings, plans, _start(planner, settings))
    written.write_text(lab_to_html(view), encoding="utf-8")
    return WrittenFile(written)


def _plans(planner: Planner, settings: Mapping[str, Sequence[Any]]) -> Iterator[Planned | str]:
    for values in itertools.product(*settings.values()):
        try:
            planned = planner.plan(dict(zip(settings, values, strict=True)))
        except Error as error:
            yield str(error.message)
        else:
            yield planned


def _usual_sweep(planner: Planner) -> dict[str, Sequence[Any]]:
    """Returns the settings that matter to a model, each with what it has and what is near."""
    config, num_ipus = planner.inventory.config, planner.system.num_ipus
    accumulation = config.gradient_accumulation
    sweep: dict[str, Sequence[Any]] = {}
    if planner.inventory.rows:
        sweep["micro_batch"] = (planner.inventory.rows, 4 * planner.inventory.rows)
    if config.is_training:
        sweep["accumulation"] = sorted({max(1, accumulation // 4), accumulation, 4 * accumulation})
    now = len(planner.inventory.placed.ipu_ids)
    sweep["num_ipus"] = sorted({count for count in (1, 2, 4, now) if count <= num_ipus})
    sweep["schedule"] = ("grouped", "interleaved")
    if config.is_training:
        sweep["recomputation"] = ("none", "pipeline")
        sweep["offload"] = ("nothing", "optimizer")
    sweep["replicas"] = sorted({1, config.replication_factor, 2 * config.replication_factor})
    return sweep


def _start(planner: Planner, settings: Mapping[str, Sequence[Any]]) -> list[int]:
    """Returns which value of each setting is the model's own, or the nearest below it."""
    config = planner.inventory.config
    own: dict[str, Any] = {
        "micro_batch": planner.inventory.rows,
        "accumulation": config.gradient_accumulation,
        "num_ipus": len(planner.inventory.placed.ipu_ids),
        "replicas": config.replication_factor,
        "device_iterations": config.device_iterations,
        "schedule": config.strategy.order.value,
        "recomputation": "pipeline",
    }
    return [
        list(values).index(own[name]) if own.get(name) in values else 0
        for name, values in settings.items()
    ]
