"""What an exercise of the course is: a title, what its answer is, and a checker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# A wrapped model, and the inputs of a call.
Wrapped = tuple[Any, ...]


@dataclass(frozen=True)
class Findings:
    """What a checker found in an answer.

    Attributes:
        faults: what is wrong, a reason in words for each; empty if the answer is right.
        facts: what was measured.
    """

    faults: tuple[str, ...]
    facts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exercise:
    """An exercise.

    Attributes:
        title: a few words.
        expected: what an answer is, in words.
        kinds: the types that an answer may have.
        assess: checks an answer of these types; what it raises is told as a fault.
        wrap: makes the wrapped model and its inputs from an answer, if the answer says how a model
            runs.
    """

    title: str
    expected: str
    kinds: tuple[type, ...]
    assess: Callable[[Any], Findings]
    wrap: Callable[[Any], Wrapped] | None = None

    def fault_of_kind(self, answer: Any) -> str:
        """Returns why an answer is of no use at all; "" if its type is right."""
        if isinstance(answer, self.kinds):
            return ""
        return f"The answer is of type {type(answer).__name__}, but it should be {self.expected}."
