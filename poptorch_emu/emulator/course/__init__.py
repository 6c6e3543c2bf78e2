"""A course of eight exercises on pipelines; `tutorials/course/course.ipynb` has the tasks."""

from __future__ import annotations

from types import EllipsisType
from typing import Any

from poptorch_emu.emulator.course import (
    balance_exercise,
    bubble_exercise,
    bug_exercise,
    cut_exercise,
    half_exercise,
    memory_exercise,
    replicas_exercise,
    schedule_exercise,
)
from poptorch_emu.emulator.course.assessment import Assessment
from poptorch_emu.emulator.course.bug_exercise import reference, suspect
from poptorch_emu.emulator.course.exercise import Exercise, Findings, Wrapped
from poptorch_emu.emulator.course.layers import Layer, Layers, Sensor
from poptorch_emu.errors import Error, make_error

__all__ = ["Assessment", "Layer", "Layers", "Sensor", "check", "reference", "suspect", "wrapped"]

_EXERCISES: tuple[Exercise, ...] = (
    cut_exercise.EXERCISE,
    bubble_exercise.EXERCISE,
    memory_exercise.EXERCISE,
    balance_exercise.EXERCISE,
    schedule_exercise.EXERCISE,
    replicas_exercise.EXERCISE,
    half_exercise.EXERCISE,
    bug_exercise.EXERCISE,
)


def check(number: int, answer: Any) -> Assessment:
    """Returns whether an answer to an exercise is right, with the reasons if it is not (exact).

    A wrong answer raises no error. Figures of the model of the machine are compared with those of
    other settings of the same exercise, never with a fixed number.

    Args:
        number: number of the exercise, from 1 to 8.
        answer: the value that the task asks for; `...` if there is no answer yet.

    Raises:
        Error: `number` is not the number of an exercise.

    Example:
        >>> print(emulator.course.check(5, emulator.schedules.gpipe()))
        Exercise 5, pick a schedule: not yet.
        - The bubble is 27.3%, but at most 12% is asked for. ...
        - An IPU stashes 8 micro-batches, but at most 5 are asked for. ...
        The bubble is 27.3%, ...
    """
    exercise = _exercise(number)
    findings = _findings(exercise, answer)
    return Assessment(number, exercise.title, findings.faults, findings.facts)


def wrapped(number: int, answer: Any) -> Wrapped:
    """Returns the wrapped model that an answer describes, and its inputs, as the checker uses them.

    Functions of the emulator take both: `emulator.estimate(*wrapped(3, options))`. All models
    except that of exercise 1 are on the meta device, because nothing runs (exact).

    Args:
        number: number of an exercise whose answer describes how a model runs: 1, 2, 3, 4 or 6.
        answer: the value that the task asks for.

    Raises:
        Error: the exercise has no such model, or the answer has the wrong type.
    """
    exercise = _exercise(number)
    if exercise.wrap is None:
        having = ", ".join(str(n) for n, one in enumerate(_EXERCISES, 1) if one.wrap is not None)
        raise make_error(
            f"Exercise {number} has no model to wrap. Choose one of the exercises {having}."
        )
    fault = exercise.fault_of_kind(answer)
    if fault:
        raise make_error(fault)
    return exercise.wrap(answer)


def _exercise(number: int) -> Exercise:
    if isinstance(number, int) and 1 <= number <= len(_EXERCISES):
        return _EXERCISES[number - 1]
    raise make_error(
        f"There is no exercise {number!r}. The course has exercises 1 to {len(_EXERCISES)}; the "
        "number comes first, as in check(1, answer)."
    )


def _findings(exercise: Exercise, answer: Any) -> Findings:
    if isinstance(answer, EllipsisType):
        return Findings((f"There is no answer yet. It is {exercise.expected}.",))
    fault = exercise.fault_of_kind(answer)
    if fault:
        return Findings((fault,))
    try:
        return exercise.assess(answer)
    except Error as error:
        return Findings((f"The answer does not run. {error.message}",))
    except Exception as error:  # The answer may contain a learner's code, which may raise anything.
        return Findings((f"The answer does not run. {type(error).__name__}: {error}",))
