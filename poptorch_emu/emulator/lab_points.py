"""The points of a laboratory: choices of settings, and the plan of each."""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from poptorch_emu.compile.planner import Planned, Planner
from poptorch_emu.compile.settings import own_settings
from poptorch_emu.errors import Error, make_error
from poptorch_emu.module_loading import without_garbage_collection
from poptorch_emu.report.page.lab_view import point_of
from poptorch_emu.report.settings_code import settings_code

# Indices of the values of a choice, as a page writes them.
_INDICES = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4})*")


def choices_near(
    sizes: Sequence[int], start: Sequence[int], most: int, free: Sequence[int] = ()
) -> list[tuple[int, ...]]:
    """Returns the choices of a page: all, or only those that change few settings.

    Args:
        sizes: number of values of each setting.
        start: index of the value of each setting at the start.
        most: largest number of choices, without those that differ in free settings only.
        free: settings that are combined freely, as long as all others have their start.

    Returns:
        the indices of the values of each choice, in order.

    Raises:
        Error: a setting has no value, or a single change already gives too many choices.
    """
    counts = [1]  # Number of choices that change exactly 0, 1, ... settings.
    for size in sizes:
        counts = [
            same + (size - 1) * other
            for same, other in zip([*counts, 0], [0, *counts], strict=True)
        ]
    sums = list(itertools.accumulate(counts))
    changes = sum(total <= most for total in sums) - 1
    if 0 in sizes or changes < min(1, len(sizes)):
        raise make_error(
            f"The sweep has {math.prod(sizes):,} choices, but a laboratory holds 1 to {most:,}. "
            "Give each setting at least one value, and fewer values in total."
        )
    fixed = [range(size) if at in free else [start[at]] for at, size in enumerate(sizes)]
    return sorted({*_near(list(sizes), list(start), changes), *itertools.product(*fixed)})


def _near(sizes: list[int], start: list[int], changes: int) -> Iterator[tuple[int, ...]]:
    if not sizes:
        yield ()
        return
    for index in range(sizes[0]):
        left = changes - (index != start[0])
        if left >= 0:
            for others in _near(sizes[1:], start[1:], left):
                yield (index, *others)


def points_of(
    planner: Planner, settings: Mapping[str, Sequence[Any]], choices: Sequence[tuple[int, ...]]
) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
    """Yields the indices of each choice, and its point."""
    for indices in choices:
        yield indices, _point_at(planner, settings, indices)


def answers(
    planner: Planner, settings: Mapping[str, Sequence[Any]]
) -> Callable[[str], dict[str, Any] | None]:
    """Returns a function that finds the point of a choice from its indices, such as "3.0.1".

    For a text that names no choice, the function returns None.
    """

    def answer(question: str) -> dict[str, Any] | None:
        if not _INDICES.fullmatch(question):
            return None
        indices = tuple(map(int, question.split(".")))
        sizes = tuple(map(len, settings.values()))
        if len(indices) != len(sizes) or any(map(operator.ge, indices, sizes)):
            return None
        return _point_at(planner, settings, indices)

    return answer


def _point_at(
    planner: Planner, settings: Mapping[str, Sequence[Any]], indices: Sequence[int]
) -> dict[str, Any]:
    pairs = zip(settings.items(), indices, strict=True)
    point = point_for(planner, {name: values[at] for (name, values), at in pairs})
    planner.forget_plans()
    return point


def point_for(planner: Planner, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the point of one choice, or the reason why it has no plan."""
    try:
        with without_garbage_collection():
            return point_of(*planned_for(planner, values))
    except Error as error:
        return point_of(str(error.message))


def planned_for(planner: Planner, values: Mapping[str, Any]) -> tuple[Planned, str]:
    """Returns the plan of one choice, and lines of code that have the same settings.

    A plan has no settings that the model already has, except the number of IPUs: it is always set,
    because a schedule may use each IPU for several stages.

    Raises:
        Error: the settings conflict with each other or with the model.
    """
    own = {**own_settings(planner.inventory), "num_ipus": None}
    chosen = {name: value for name, value in values.items() if own.get(name) != value}
    planned = planner.plan(chosen)
    return planned, _code(values, settings_code(chosen, planned))


def _code(values: Mapping[str, Any], lines: str) -> str:
    """Returns the code for a choice: the model's own settings need no line."""
    system = values.get("system")
    named = "" if system is None else f', system="{system}"'
    return "\n".join([lines or "# The options of the model stay as they are.",
                      f"emulator.estimate(model, *inputs{named})"])  # fmt: skip
