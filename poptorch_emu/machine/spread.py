"""Intervals of predicted figures, from the subjects that a figure consists of and their spread.

A subject is a part of the model of the machine whose errors have one cause. Its spread is how far
published figures deviate from predictions, in model families that no constant was fitted to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from operator import sub

from poptorch_emu.printed.numbers import decimals, limits_text


class Subject(Enum):
    """Part of the model of the machine, with its words in documents."""

    WORK = "operations"
    ROUGH = "operations that are modelled roughly"
    START = "starting programs"
    MOVE = "links, sums of gradients, updates, streaming memory"
    HOST = "transfers to and from the host, and its calls"
    SYSTEM = "PCIe cards and their runtime; more than one pod"
    TENSOR = "tensors on tiles"
    PROGRAM = "programs on tiles"


Amounts = Mapping[Subject, float]

# Subjects that err together: the latencies of a small program, of links and of the host come from
# the same synchronisation, and are all too short if a program does more of it than is modelled.
OVERHEADS = (Subject.START, Subject.MOVE, Subject.HOST)

# Logarithms of the factor by which four of five figures of one subject deviate at most. Fitted in
# cross-validation to the published speeds and memories of `docs/fidelity.md`, as described in
# `benchmarks/fidelity_spreads.py`. More than one pod, for which no row exists, is assumed to have
# the spread of cards.
SPREADS: Amounts = {
    Subject.WORK: 0.15,
    Subject.ROUGH: 0.19,
    Subject.START: 0.36,
    Subject.MOVE: 0.36,
    Subject.HOST: 0.36,
    Subject.SYSTEM: 0.22,
    Subject.TENSOR: 0.12,
    Subject.PROGRAM: 0.46,
}
# A program was measured 2 % faster with another version of the SDK (C22).
VERSIONS = 0.02


def spread(amounts: Amounts, others: Amounts | None = None, spreads: Amounts = SPREADS) -> float:
    """Returns the logarithm of the factor by which a figure deviates in one of five cases at most.

    Overheads deviate together, so that they add up. They and the other subjects deviate
    independently of each other (assumed), so that their squares add up.

    Args:
        amounts: seconds or bytes by subject. An unusual system is an amount of its own, as large as
            all others together, because it affects all of them.
        others: amounts of another figure. The result is then the spread of the ratio of both:
            a subject that has the same share of both cancels out.
        spreads: spread of each subject.
    """
    own, other = weights(amounts, spreads), weights(others or {}, spreads)
    pairs = zip(own, other, strict=True)
    return math.hypot(VERSIONS, *(math.fsum(map(abs, map(sub, *pair))) for pair in pairs))


@dataclass(frozen=True)
class Figure:
    """A predicted time, speed or size, with its interval (modelled).

    `print` shows both, and `figure * 2` and `figure / 1024` are the figure in another unit.

    Attributes:
        value: predicted value.
        amounts: its parts by subject, in seconds or bytes.
    """

    value: float
    amounts: Amounts = field(repr=False)

    @property
    def interval(self) -> tuple[float, float]:
        """Limits between which four of five real figures lie."""
        factor = math.exp(spread(self.amounts))
        return self.value / factor, self.value * factor

    @property
    def likely(self) -> str:
        """The interval in words: `5,030 to 6,770`, the upper limit with three digits."""
        return limits_text(*self.interval)

    def __str__(self) -> str:
        """Returns the value and its interval: `5,839 (likely 5,030 to 6,770)`."""
        return f"{self.value:,.{max(0, decimals(self.interval[1]))}f} (likely {self.likely})"

    def __mul__(self, factor: float) -> Figure:
        """Returns the figure in a unit that is smaller by a factor."""
        return replace(self, value=self.value * factor)

    def __truediv__(self, factor: float) -> Figure:
        """Returns the figure in a unit that is larger by a factor."""
        return self * (1 / factor)

    def is_about(self, other: Figure) -> bool:
        """Whether the model cannot tell which of two figures of one model is larger."""
        return abs(math.log(self.value / other.value)) <= spread(self.amounts, other.amounts)


def weights(amounts: Amounts, spreads: Amounts = SPREADS) -> list[list[float]]:
    """Returns a list for each set of subjects that err together: shares times their spreads."""
    total = math.fsum(amount for each, amount in amounts.items() if each is not Subject.SYSTEM)
    sets = [OVERHEADS, *((each,) for each in Subject if each not in OVERHEADS)]
    return [[spreads[s] * amounts.get(s, 0.0) / (total or 1.0) for s in each] for each in sets]
