"""Walks two runs in the order of our graph, and says of each value whether rounding explains it.

An operation is judged by itself: what each run has is held against the exact result of the
operation *on that run's own inputs*. So a difference is found where it begins, and what follows
from it is not taken for another one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import fx

from poptorch_emu.numbers.alignment import aligned_places
from poptorch_emu.numbers.pair import Pair
from poptorch_emu.numbers.place_walk import PlaceWalk
from poptorch_emu.numbers.run import FIRST, VIEW, Direction
from poptorch_emu.numbers.side import last_uses
from poptorch_emu.numbers.verdicts import (
    Difference,
    Judgement,
    ModuleRow,
    NumbersComparison,
    Verdict,
    given_apart,
    relative_distance,
    same_bits,
    sample,
)

# Judges what no graph of a micro-batch has, such as an update: the value's two numbers and tensors.
Judge = Callable[[int, int], Judgement | None]


@dataclass
class _Row:
    verdict: Verdict = Verdict.EQUAL
    num_values: int = 0
    num_equal: int = 0
    relative: float = 0.0


class Walk:
    """One walk through two runs."""

    def __init__(self, pair: Pair, on_step: Callable[[], object] = lambda: None) -> None:
        """Takes the runs.

        Args:
            pair: the two.
            on_step: called after each value of each place.
        """
        self._pair, self._on_step = pair, on_step
        self._rows: dict[tuple[str, Direction], _Row] = defaultdict(_Row)
        self._first: dict[Verdict, Difference] = {}
        self._compared: set[int] = set()
        self._values = pair.ours.values
        self._last_use = last_uses(pair.graph)
        self.their_numbers = {
            node: pair.matched[number]
            for node, number in pair.numbers.items()
            if number in pair.matched
        }

    def run(self, judge_updates: Judge = lambda ours, theirs: None) -> None:
        """Walks through what was given, all places, and the updates."""
        pair = self._pair
        self._walk_named(Direction.GIVEN, lambda ours, theirs: None)
        for ours, theirs in aligned_places(pair.ours.places, pair.theirs.places).items():
            PlaceWalk(self, pair, ours, theirs).walk(self._on_step)
        self._walk_named(Direction.UPDATE, judge_updates)

    def result(self, notes: Sequence[str] = ()) -> NumbersComparison:
        """Returns what was found."""
        pair = self._pair
        begins = [v for v in self._first if v is not Verdict.FOLLOWS]
        verdict = max(begins, default=Verdict.EQUAL)
        rows = [
            ModuleRow(module, direction, row.verdict, row.num_values, row.num_equal, row.relative)
            for (module, direction), row in self._rows.items()
        ]
        seen = {n for n in pair.numbers.values() if self._values[n].kind != VIEW}
        missing = seen - {pair.numbers[node] for node in self.their_numbers}
        return NumbersComparison(
            verdict, self._first.get(verdict), tuple(rows), pair.ours.title, pair.theirs.title,
            len(self._compared), len(missing), tuple(notes),
        )  # fmt: skip

    def note(self, number: int, verdict: Verdict, relative: float) -> None:
        """Counts a value."""
        value = self._values[number]
        self._compared.add(number)
        row = self._rows[value.module, value.direction]
        row.verdict = max(row.verdict, verdict)
        row.num_values += 1
        row.num_equal += verdict is Verdict.EQUAL
        row.relative = max(row.relative, relative)

    def is_first(self, verdict: Verdict) -> bool:
        """Returns whether a difference of this verdict would be kept."""
        return verdict not in self._first

    def keep(self, difference: Difference) -> None:
        """Keeps a difference if it is the first of its verdict."""
        self._first.setdefault(difference.verdict, difference)

    def last_used(self, node: fx.Node) -> Sequence[fx.Node]:
        """Returns the operations whose results nobody reads after this one."""
        return self._last_use.get(node, ())

    def _walk_named(self, direction: Direction, judge: Judge) -> None:
        """Walks through what is there once a window."""
        pair, observed = self._pair, set(self._pair.numbers.values())
        for number, value in enumerate(self._values):
            other = pair.matched.get(number)
            if value.direction is not direction or number in observed or other is None:
                continue
            ours, theirs = pair.ours.read(number, FIRST), pair.theirs.read(other, FIRST)
            if ours is None or theirs is None:
                continue
            if same_bits(ours, theirs):
                self.note(number, Verdict.EQUAL, 0.0)
                continue
            found = judge(number, other) or given_apart(ours, theirs)
            self.note(number, found.verdict, relative_distance(ours, theirs))
            if self.is_first(found.verdict):
                shown = sample(ours, theirs)
                self.keep(Difference(value, FIRST, found.verdict, shown, found.reason))
