"""The laboratory: a page with a control for each setting of a model, which shows its effect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations
from pathlib import Path
from typing import Any

from poptorch_emu.compile.planner import Planner
from poptorch_emu.compile.settings import OFFLOADED, SCHEDULES, own_settings
from poptorch_emu.config import Recomputation
from poptorch_emu.emulator.estimates import planner_of
from poptorch_emu.emulator.given_values import path_and_inputs, wrapped
from poptorch_emu.emulator.lab_exercises import exercise_benches
from poptorch_emu.emulator.lab_points import choices_near, points_of
from poptorch_emu.emulator.what_ifs import checked_sweep
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.machine.system import SYSTEMS
from poptorch_emu.module_loading import without_garbage_collection
from poptorch_emu.report.page.lab_view import bench_view
from poptorch_emu.report.page.page_file import lab_to_html
from poptorch_emu.report.written_file import WrittenFile
from poptorch_emu.runtime.progress import counted
from poptorch_emu.untrusted.files import write_named

# Largest number of plans for a sweep of the user, because browsers open larger pages slowly, and
# for the usual settings, because plans of a large model take a second each.
_MOST_PLANS, _USUAL_PLANS = 3000, 600
# Settings whose values are all combined with each other, because they make the pipeline.
_FREE = ("num_ipus", "schedule", "accumulation")
# Micro-batches of an update for each IPU of the pipeline, from the least that fill it.
_PER_IPU = (2, 3, 4, 6, 8, 12, 16, 24, 32)
_SYSTEMS = ("mk2-pod16", "bow-pod16")
# Largest number of steps of a fine slider.
_MOST_STEPS = 128


def lab(
    model: PoplarExecutor,
    *inputs: Any,
    path: str | Path | None = None,
    sweep: Mapping[str, Sequence[Any]] | None = None,
    exercises: bool = False,
    most_plans: int | None = None,
    **keywords: Any,
) -> Path:
    """Writes a page with a control for each setting of `model`, and returns its path (modelled).

    All choices are planned in advance, with a progress bar; the page selects a plan and needs
    neither Python nor a network. It first asks the reader how much of the time the IPUs wait, then
    shows formulas with the numbers of the choice, timeline, memory, the difference from the last
    choice, and code for it. If there are too many choices, the page holds those that change the
    fewest settings, and all combinations of IPUs, schedule and accumulation; `live_lab` plans any
    choice when it is made. A notebook displays the page itself.

    Args:
        model: wrapped model from `trainingModel` or `inferenceModel`.
        inputs: arguments of a call; may be left out for a compiled model.
        path: path of the file, which is overwritten; may also be passed before the inputs.
        sweep: values by setting, as for `what_if`; by default many values of important settings.
        exercises: whether to add the exercises, which have models of their own.
        most_plans: number of plans above which choices are left out; by default 3,000 for a sweep,
            and 600 without one.
        keywords: `system` and `io` as for `estimate`, and inputs by name.

    Raises:
        Error: the system or a setting is unknown, the model cannot be captured, or one setting has
            too many values.
        OSError: the file cannot be written.
        TypeError: the model is not wrapped, or no path is given.
    """
    model = wrapped(model)
    written, inputs = path_and_inputs("lab", "path", path, inputs)
    planner = planner_of(model, inputs, keywords)
    settings = checked_sweep(usual_sweep(planner) if sweep is None else sweep)
    choices = choices_near(
        list(map(len, settings.values())),
        _start(planner, settings),
        most_plans or (_USUAL_PLANS if sweep is None else _MOST_PLANS),
        [at for at, name in enumerate(settings) if name in _FREE],
    )
    shown = counted(
        points_of(planner, settings, choices),
        len(choices),
        "Laboratory",
        planner.inventory.config.shows_progress_bar,
    )
    with without_garbage_collection():
        view = view_of(planner, settings, shown, exercises=exercises)
    write_named(written, lab_to_html(view))
    return WrittenFile(written)


def view_of(
    planner: Planner,
    settings: Mapping[str, Sequence[Any]],
    points: Iterable[tuple[tuple[int, ...], Mapping[str, Any]]],
    *,
    exercises: bool,
) -> dict[str, Any]:
    """Returns the content of the page: the bench of a model, and those of the exercises."""
    name = planner.inventory.config.model_name or type(planner.request.model).__name__
    benches = [bench_view("Laboratory", settings, _start(planner, settings), points)]
    return {"name": name, "benches": [*benches, *(exercise_benches() if exercises else ())]}


def usual_sweep(planner: Planner) -> dict[str, Sequence[Any]]:
    """Returns important settings of a model, each with its present value and others."""
    own, config = own_settings(planner.inventory), planner.inventory.config
    num_ipus, rows = own["num_ipus"], planner.inventory.rows
    counts = {count for count in (1, 2, 4, 8) if count <= planner.system.num_ipus}
    sweep: dict[str, Sequence[Any]] = {"num_ipus": sorted({*counts, num_ipus})}
    sweep["schedule"] = tuple(dict.fromkeys((*SCHEDULES, own["schedule"])))
    if rows:
        sweep["micro_batch"] = sorted({max(1, rows * times // 4) for times in (1, 2, 4, 8)})
    window = "accumulation" if config.is_training else "device_iterations"
    sweep[window] = sorted({*(num_ipus * each for each in _PER_IPU), own[window]})
    if config.is_training:
        sweep["recomputation"] = _with_own(own["recomputation"], "none", "pipeline")
        sweep["offload"] = _with_own(own["offload"], "nothing", "optimizer", "activation")
    sweep["replicas"] = sorted({1, 2, 4, own["replicas"]})
    sweep["system"] = _with_own(planner.system.name, *_SYSTEMS)
    return sweep


def fine_sweep(planner: Planner) -> dict[str, Sequence[Any]]:
    """Returns the settings of `usual_sweep` with all values that a slider or a list can show."""
    own = own_settings(planner.inventory)
    numbers = {"num_ipus": 8, "micro_batch": 64, "accumulation": 128, "device_iterations": 128,
               "replicas": 16}  # fmt: skip
    names = {
        "recomputation": [mode.name.lower() for mode in Recomputation],
        "offload": ["nothing", *("+".join(kinds) for kinds in _together(OFFLOADED))],
        "system": [name for name, system in SYSTEMS.items() if system.num_ipus],
    }
    sweep: dict[str, Sequence[Any]] = {}
    for name, usual in usual_sweep(planner).items():
        if name in numbers:
            sweep[name] = _slider(own[name], numbers[name])
        else:
            sweep[name] = tuple(dict.fromkeys((*usual, *names.get(name, ()))))
    return sweep


def _slider(own: int, least_end: int) -> list[int]:
    """Returns evenly spaced numbers up to twice the model's own one, and that one."""
    end = max(least_end, 2 * own)
    step = -(-end // _MOST_STEPS)
    return sorted({own, *range(step, end + 1, step)})


def _together(kinds: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return chain.from_iterable(combinations(kinds, size) for size in range(1, len(kinds) + 1))


def _with_own(own: str, *others: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((own, *others)))


def _start(planner: Planner, settings: Mapping[str, Sequence[Any]]) -> list[int]:
    """Returns, for each setting, the index of the model's value, or 0 if it is not listed."""
    own = {**own_settings(planner.inventory), "system": planner.system.name}
    return [
        list(values).index(own[name]) if own.get(name) in values else 0
        for name, values in settings.items()
    ]
