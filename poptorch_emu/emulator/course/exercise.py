"""Definition of an exercise of the course: its title, its expected answer, and its checker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# A wrapped model, and the inputs of a call.
Wrapped = tuple[Any, ...]


@dataclass(frozen=True)
class Findings:
    """Faults and measurements that a checker found in an answer.

    Attributes:
        faults: sentences that say what is wrong; empty if the answer is right.
        facts: sentences that say what was measured.
    """

    faults: tuple[str, ...]
    facts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exercise:
    """An exercise of the course.

    Attributes:
        title: title of a few words.
        expected: description of the expected answer.
        kinds: types that an answer may have.
        assess: checks an answer of these types; an exception counts as a fault.
        wrap: creates the wrapped model and its inputs from an answer; `None` if the answer does
            not describe how a model runs.
    """

    title: str
    expected: str
    kinds: tuple[type, ...]
    assess: Callable[[Any], Findings]
    wrap: Callable[[Any], Wrapped] | None = None

    def fault_of_kind(self, answer: Any) -> str:
        """Returns a sentence if the answer has a wrong type; "" if its type is right."""
        if isinstance(answer, self.kinds):
            return ""
        return f"The answer is of type {type(answer).__name__}, but it should be {self.expected}."
