"""Python numbers that note which decisions of `forward` depend on them.

While a model is captured once more, a watched number stands for a counter that `forward` changes.
Results of its arithmetic are watched, too. A comparison or a rounding of such a number is a
decision. A later call may decide otherwise, so `Decisions` can turn a decision into its opposite.

Python reads some numbers without a call that could be noticed: as an index of a list, and in
`float * int`, where the float is on the left.
"""

from __future__ import annotations

import linecache
import math
import operator
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from types import CodeType
from typing import Any

from poptorch_emu.trace.places.source_line import is_users_file

# An instruction of Python: the code and the position in it.
Site = tuple[CodeType, int]
# Largest number of times that one instruction is turned, so that a loop ends.
_MAX_TURNS = 1000

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_ARITHMETIC = ("add", "sub", "mul", "truediv", "mod", "pow")
_UNARY = ("neg", "pos", "abs")
# Operations whose results stay the same in many calls, and then make a step.
_STEPS: dict[str, Callable[..., Any]] = {
    "floordiv": operator.floordiv,
    "rshift": operator.rshift,
    "int": int,
    "round": round,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
}


@dataclass(frozen=True)
class Decision:
    """A decision of `forward`.

    Attributes:
        origins: paths of the numbers that it depends on.
        line: "file:line" of the decision, with the text of the line.
    """

    origins: frozenset[str]
    line: str


class Decisions:
    """The decisions during one capture.

    Attributes:
        made: decisions by instruction, the first one of each.
        turned: instructions whose decisions are turned into their opposite.
        is_over: whether the capture is over, so that nothing is noted or turned any more.
    """

    def __init__(self, turned: frozenset[Site] = frozenset()) -> None:
        self.made: dict[Site, Decision] = {}
        self.turned = turned
        self.is_over = False
        self._num_turns = Counter[Site]()

    def decide(self, origins: frozenset[str], outcome: Any) -> Any:
        """Notes a decision of the user's code, and returns its outcome.

        Args:
            origins: paths of the numbers that it depends on.
            outcome: a flag, or a number after a step.
        """
        frame = sys._getframe(2)
        file, line = frame.f_code.co_filename, frame.f_lineno
        if self.is_over or not (file.startswith("<") or is_users_file(file)):
            return outcome
        site = frame.f_code, frame.f_lasti
        code = linecache.getline(file, line).strip()
        self.made.setdefault(site, Decision(origins, f"{file}:{line}" + f" ({code})" * bool(code)))
        self._num_turns[site] += site in self.turned
        if site not in self.turned or self._num_turns[site] > _MAX_TURNS:
            return outcome
        return not outcome if isinstance(outcome, bool) else outcome + 1


class _Watched:
    """Common part of watched integers and watched floats."""

    origins: frozenset[str]
    decisions: Decisions

    def __bool__(self) -> bool:
        outcome: bool = self.decisions.decide(self.origins, bool(plain(self)))
        return outcome

    def __hash__(self) -> int:
        return hash(plain(self))

    def __reduce__(self) -> Any:
        return type(plain(self)), (plain(self),)


class _WatchedInt(_Watched, int):
    pass


class _WatchedFloat(_Watched, float):
    pass


def watched(value: Any, origins: frozenset[str], decisions: Decisions) -> Any:
    """Returns a number that notes decisions; flags and other objects are returned unchanged."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    is_int = isinstance(value, Integral)
    made = _WatchedInt(value) if is_int else _WatchedFloat(value)  # type: ignore[call-overload]
    made.origins, made.decisions = origins, decisions
    return made


def plain(value: Any) -> Any:
    """Returns the number of Python that a watched number stands for."""
    if isinstance(value, _WatchedInt):
        return int.__pos__(value)
    return float.__pos__(value) if isinstance(value, _WatchedFloat) else value


def _all_origins(number: _Watched, others: tuple[Any, ...]) -> frozenset[str]:
    found = [other.origins for other in others if isinstance(other, _Watched)]
    return number.origins.union(*found)


def _arithmetic(function: Callable[..., Any], is_reflected: bool = False) -> Callable[..., Any]:
    def method(self: _Watched, *others: Any) -> Any:
        values = [plain(each) for each in (self, *others)]
        result = function(*(values[::-1] if is_reflected else values))
        return watched(result, _all_origins(self, others), self.decisions)

    return method


def _decision(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: _Watched, *others: Any) -> Any:
        outcome = function(plain(self), *map(plain, others))
        if not isinstance(outcome, (bool, int, float)):  # Of a tensor or an array, for example.
            return outcome
        return self.decisions.decide(_all_origins(self, others), outcome)

    return method


for _each in _ARITHMETIC:
    setattr(_Watched, f"__{_each}__", _arithmetic(getattr(operator, _each)))
    setattr(_Watched, f"__r{_each}__", _arithmetic(getattr(operator, _each), is_reflected=True))
for _each in _UNARY:
    setattr(_Watched, f"__{_each}__", _arithmetic(getattr(operator, _each)))
for _each in _COMPARISONS:
    setattr(_Watched, f"__{_each}__", _decision(getattr(operator, _each)))
for _each, _function in _STEPS.items():
    setattr(_Watched, f"__{_each}__", _decision(_function))
