"""Exercises of the laboratory: benches with a task, and an assessment of each choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from poptorch_emu.compile.planner import Planner
from poptorch_emu.emulator.course.balance_exercise import LEAST_SPEED, NUM_IPUS, WIDTH
from poptorch_emu.emulator.course.placing import SYSTEM, evenly, half_layers, plain_options
from poptorch_emu.emulator.estimates import planner_of
from poptorch_emu.emulator.lab_points import choices_near, point_for
from poptorch_emu.machine.ipu import KIB
from poptorch_emu.report.page.lab_view import bench_view

# Hidden features of each layer: equal layers, and layers of three sizes.
_EQUAL, _UNEQUAL = (4096,) * 4, (512, 512, 512, 512, 1024, 1024, 4096, 4096)
_ROWS, _ACCUMULATION = 256, 8
# Share of the best speed that counts as the best.
_SAME_SPEED = 0.999
_MOST_PLANS = 2000

Point = dict[str, Any]
# Assesses a choice: its values, its point, and the best point of the bench.
Assess = Callable[[Mapping[str, Any], Point, Point], tuple[list[str], str]]


@dataclass(frozen=True)
class LabExercise:
    """An exercise of the laboratory.

    Attributes:
        settings: possible values of each setting on the page.
        planner_settings: returns the settings of the planner for the values of a choice; a text if
            the choice is impossible.
        assess: returns the faults of a choice, and the reason why it is right.
        hidden: number of hidden features of each layer of the model.
        start: index of the value of each setting at the start; empty for the first values.
    """

    title: str
    task: str
    settings: Mapping[str, Sequence[Any]]
    planner_settings: Callable[[Mapping[str, Any]], Mapping[str, Any] | str]
    assess: Assess
    hidden: Sequence[int] = _UNEQUAL
    start: Sequence[int] = ()


def exercise_benches() -> list[dict[str, Any]]:
    """Returns the benches of all exercises, with models of their own."""
    return [_bench(number, one) for number, one in enumerate(EXERCISES, 1)]


def _bench(number: int, exercise: LabExercise) -> dict[str, Any]:
    points = dict(points_of_exercise(exercise))
    best = max(
        (point for point in points.values() if point["fault"] is None and point["fits"] != "no"),
        key=_speed,
    )
    for indices, point in points.items():
        if point["fault"] is None:
            faults, reason = exercise.assess(_values(exercise, indices), point, best)
            point["verdict"] = {"faults": faults, "reason": "" if faults else reason}
    start = exercise.start or [0] * len(exercise.settings)
    title = f"Exercise {number}: {exercise.title}"
    return bench_view(title, exercise.settings, start, points.items(), exercise.task)


def points_of_exercise(exercise: LabExercise) -> Iterator[tuple[tuple[int, ...], Point]]:
    """Yields the indices of each choice of an exercise, and its point."""
    planner = _planner(exercise.hidden)
    known: dict[str, Point] = {}
    sizes = list(map(len, exercise.settings.values()))
    for indices in choices_near(sizes, [0] * len(sizes), _MOST_PLANS):
        settings = exercise.planner_settings(_values(exercise, indices))
        if isinstance(settings, str):
            yield indices, {"fault": settings}
            continue
        key = str(settings)
        if key not in known:
            known[key] = point_for(planner, settings)
            planner.forget_plans()
        yield indices, dict(known[key])


def _planner(hidden: Sequence[int]) -> Planner:
    options = plain_options(_ACCUMULATION)
    options.enableSyntheticData(True)  # The host takes no time.
    ipus = evenly(len(hidden), NUM_IPUS)
    model, *inputs = half_layers(hidden, WIDTH, _ROWS * _ACCUMULATION, options, ipus)
    return planner_of(model, tuple(inputs), {"system": SYSTEM})


def _values(exercise: LabExercise, indices: Sequence[int]) -> dict[str, Any]:
    pairs = zip(exercise.settings.items(), indices, strict=True)
    return {name: values[at] for (name, values), at in pairs}


def _speed(point: Point) -> float:
    speed: float = point["rows_per_second"] or 0.0
    return speed


def _fullest(point: Point) -> int:
    sizes: list[int] = [size for _, size in point["fullest_bytes"]]
    return max(sizes)


# The first exercise: a bubble is small with many micro-batches or with another schedule, and each
# has its price in memory.
_MOST_BUBBLE, _LIMIT_KIB = 0.1, 170


def _fill(values: Mapping[str, Any], point: Point, best: Point) -> tuple[list[str], str]:
    faults, fullest = [], _fullest(point) / KIB
    if point["bubble"] > _MOST_BUBBLE:
        faults.append(
            f"The bubble is {point['bubble']:.1%}, but at most {_MOST_BUBBLE:.0%} is asked for. "
            "Look at its formula: which of the terms can you change?"
        )
    if fullest > _LIMIT_KIB:
        faults.append(
            f"The fullest tile holds {fullest:.0f} KiB, but at most {_LIMIT_KIB} are asked for. "
            "Look at the formula of the stash: how many micro-batches wait, and what does backward "
            "need of each?"
        )
    return faults, (
        f"Right: the bubble is {point['bubble']:.1%}, with {fullest:.0f} KiB. More micro-batches "
        "make the bubble a smaller part of the window. The schedule decides how many of them wait "
        "in the stash, and recomputation how many bytes each of them needs there."
    )


# The second exercise: the layers differ, so that equal numbers of layers are no equal stages.
def _cut(values: Mapping[str, Any]) -> Mapping[str, Any] | str:
    counts = [int(values[f"Layers on IPU {ipu}"]) for ipu in range(NUM_IPUS - 1)]
    left = len(_UNEQUAL) - sum(counts)
    if left < 1:
        return (
            f"IPU {NUM_IPUS - 1} would have no layer: the others have {sum(counts)} of the "
            f"{len(_UNEQUAL)}. Take some from them."
        )
    return {"stages": _stages([*counts, left])}


def _stages(counts: Sequence[int]) -> tuple[tuple[str, ...], ...]:
    names = iter(map("layer{}".format, range(sum(counts))))
    return tuple(tuple(next(names) for _ in range(count)) for count in counts)


def _balance(values: Mapping[str, Any], point: Point, best: Point) -> tuple[list[str], str]:
    if _speed(point) < LEAST_SPEED * _speed(best):
        return [
            f"{_speed(point):,.0f} rows a second, but another split gives {_speed(best):,.0f}. All "
            "IPUs wait for the one with the most work in a slot: find it in the timeline, and move "
            "a layer from it to a neighbour."
        ], ""
    return [], (
        f"Right: {_speed(point):,.0f} rows a second. A slot lasts as long as the slowest stage, so "
        "the best split makes the slowest stage short. The last layers are eight times as large "
        "as the first ones: their IPUs need fewer of them."
    )


# The third exercise: the stages have equal numbers of layers, and therefore unequal work.
_WHYS = (
    "choose a reason",
    "it has fewer slots",
    "an IPU waits only for data, and gradients of weights fill its pauses",
    "fewer micro-batches wait in the stash",
    "the slow stage becomes faster",
)
_RIGHT_WHY = _WHYS[2]
_WRONG_WHYS = {
    _WHYS[0]: "Choose a reason, too.",
    _WHYS[1]: "The number of slots is not the reason: compare it with that of other schedules. "
    "Slots of a table have no common length.",
    _WHYS[3]: "The stash is memory, not time: compare the stash and the speed of two schedules.",
    _WHYS[4]: "No schedule changes the work of a stage: compare the time of an IPU's actions.",
}


def _wins(values: Mapping[str, Any], point: Point, best: Point) -> tuple[list[str], str]:
    faults = []
    if _speed(point) < _SAME_SPEED * _speed(best):
        faults.append(
            f"{_speed(point):,.0f} rows a second, but another schedule gives {_speed(best):,.0f}. "
            "Look for the pauses of the IPUs that are not the slowest: which schedule uses them?"
        )
    if values["Why?"] != _RIGHT_WHY:
        faults.append(_WRONG_WHYS[values["Why?"]])
    return faults, (
        "Right. In grouped and interleaved order all IPUs begin each slot together, so that each "
        "slot lasts as long as the slowest stage, also while the pipeline fills and empties. By a "
        "table, an IPU begins as soon as its data have arrived; gradients of weights, on which "
        "nothing waits, move into its pauses. The slowest IPU limits the speed in the end."
    )


EXERCISES = (
    LabExercise(
        "fill the pipeline",
        f"Four equal layers run on {NUM_IPUS} IPUs, with inputs that are made there. Reach a "
        f"utilisation of {1 - _MOST_BUBBLE:.0%} while micro-batches run, a bubble of at most "
        f"{_MOST_BUBBLE:.0%}, within {_LIMIT_KIB} KiB of the fullest tile.",
        {
            "schedule": (
                "grouped", "interleaved", "sequential", "gpipe", "one_f_one_b", "zero_bubble_h1",
                "zero_bubble_h2",
            ),
            "accumulation": (8, 32, 64),
            "recomputation": ("pipeline", "none"),
        },
        dict,
        _fill,
        _EQUAL,
    ),
    LabExercise(
        "find the split",
        f"Eight layers run on {NUM_IPUS} IPUs: four are small, two are twice as large, and the "
        "last two are eight times as large. Find a split with at least "
        f"{LEAST_SPEED:.0%} of the speed of the best one. The rest is on the last IPU.",
        {f"Layers on IPU {ipu}": tuple(range(1, 6)) for ipu in range(NUM_IPUS - 1)},
        _cut,
        _balance,
        start=(1, 1, 1),
    ),
    LabExercise(
        "uneven stages",
        "The same eight layers, two on each IPU, so that the stages are uneven. Which schedule "
        "is the fastest of those that fit, and why?",
        {
            "schedule": (
                "grouped", "interleaved", "sequential", "gpipe", "one_f_one_b", "zero_bubble_h1",
                "zero_bubble_h2",
            ),
            "Why?": _WHYS,
        },
        lambda values: {"schedule": values["schedule"]},
        _wins,
    ),
)  # fmt: skip
