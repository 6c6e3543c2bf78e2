"""Two runs that belong together, and what each of them has at one micro-batch of one replica."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import fx

from poptorch_emu.ir.graph import Graph, operation_of
from poptorch_emu.numbers.graph_values import result_number
from poptorch_emu.numbers.quick import Quick
from poptorch_emu.numbers.run import Place, Run, Value
from poptorch_emu.numbers.side import Expectation, Side
from poptorch_emu.numbers.verdicts import Verdict, judged, same_bits

# Settings further apart than this are not the same number.
_SAME_SETTING = 1e-6
# Assumed: a mask hides numbers behind ones at least as large.
_HIDING = 1e4


@dataclass(frozen=True)
class Pair:
    """Two runs and how they belong together.

    Attributes:
        graph: ours.
        numbers: of the values of our nodes, in our run.
        matched: numbers of our values, and of the same values in the other run.
        loss_scaling: with which back-propagation starts.
        is_certain: whether the user has said what belongs together.
    """

    graph: Graph
    ours: Run
    theirs: Run
    numbers: Mapping[fx.Node, int]
    matched: Mapping[int, int]
    loss_scaling: float = 1.0
    is_certain: bool = False

    def value(self, node: fx.Node) -> Value:
        """Returns what a node is in our run."""
        return self.ours.values[self.numbers[node]]


class PairAtPlace:
    """Both runs at one place, by the nodes of our graph.

    Attributes:
        pair: the runs.
        ours: our values.
        theirs: those of the other run.
        their_numbers: of the other run's values, by our nodes; they change when another value
            turns out to be the right one.
    """

    def __init__(
        self, pair: Pair, their_numbers: MutableMapping[fx.Node, int], ours: Place, theirs: Place
    ) -> None:
        self.pair, self.their_numbers = pair, their_numbers
        self._their_place = theirs
        scaling = pair.loss_scaling
        self.ours = Side(pair.graph, pair.ours, pair.numbers, ours, loss_scaling=scaling)
        self.theirs = Side(
            pair.graph, pair.theirs, their_numbers, theirs, loss_scaling=scaling, others=self.ours
        )
        self._expected: dict[tuple[bool, fx.Node], Expectation | None] = {}
        self._quick: dict[tuple[bool, fx.Node], Quick | None] = {}

    def of_side(self, node: fx.Node, tensor: torch.Tensor, *, is_ours: bool) -> Verdict | None:
        """Returns whether one run's value is what the operation makes of that run's inputs."""
        if self._is_quickly_explained(node, tensor, is_ours=is_ours):
            return Verdict.REORDERED
        expected = self._expectation(operation_of(node), is_ours=is_ours)
        return None if expected is None else judged(expected, result_number(node), tensor)

    def is_theirs_explained(self, node: fx.Node) -> bool:
        """Returns whether the other run's value is what our operation makes, but for rounding."""
        theirs = self.theirs.own(node)
        if theirs is not None and self._is_quickly_explained(node, theirs, is_ours=False):
            return True
        expected = self._expectation(operation_of(node), is_ours=False)
        if theirs is None or expected is None:
            return False
        if judged(expected, result_number(node), theirs) > Verdict.REORDERED:
            return False
        return torch.equal(expected.results[result_number(node)].isfinite(), theirs.isfinite())

    def their_value(self, number: int) -> torch.Tensor | None:
        """Returns a value of the other run by its number."""
        return self.pair.theirs.read(number, self._their_place)

    def forget(self, operation: fx.Node) -> None:
        """Drops what was made of an operation whose results are used no more."""
        self.ours.forget(operation)
        self.theirs.forget(operation)
        for is_ours in (True, False):
            self._expected.pop((is_ours, operation), None)
            self._quick.pop((is_ours, operation), None)

    def forget_theirs(self) -> None:
        """Drops what was made of the other run's values, since others are known now."""
        self.theirs.forget_all()
        self._expected = {key: value for key, value in self._expected.items() if key[0]}
        self._quick = {key: value for key, value in self._quick.items() if key[0]}

    @contextmanager
    def wide_sums(self) -> Iterator[None]:
        """Takes what is made of the other run's values to be as near as sums in float32 are."""
        self.forget_theirs()
        self.theirs.has_wide_sums = True
        try:
            yield
        finally:
            self.theirs.has_wide_sums = False
            self.forget_theirs()

    def equal_inputs(self, operation: fx.Node) -> list[fx.Node]:
        """Returns the inputs of an operation that are the same in both runs."""
        found = []
        for node in operation.all_input_nodes:
            ours, theirs = self.ours.value(node), self.theirs.value(node)
            if ours is not None and theirs is not None and same_bits(ours.tensor, theirs.tensor):
                found.append(node)
        return found

    def other_setting(self, node: fx.Node) -> str:
        """Returns which number or word among the arguments is another one in the other run."""
        ours, theirs = self.pair.value(node).settings, self._their_value(node).settings
        for name in ours.keys() & theirs.keys():
            if not _is_same(ours[name], theirs[name]):
                return f"{name} is {_shown(ours[name])} here and {_shown(theirs[name])} there."
        return ""

    def is_set_otherwise(self, node: fx.Node) -> bool:
        """Returns whether both runs have the same operation on the same numbers, set otherwise."""
        operation = operation_of(node)
        return (
            self.pair.value(node).kind == self._their_value(node).kind
            and bool(self.other_setting(node))
            and len(self.equal_inputs(operation)) == len(operation.all_input_nodes)
        )

    def _their_value(self, node: fx.Node) -> Value:
        return self.pair.theirs.values[self.their_numbers[node]]

    def _is_quickly_explained(self, node: fx.Node, tensor: torch.Tensor, *, is_ours: bool) -> bool:
        key = is_ours, operation_of(node)
        if key not in self._quick:
            self._quick[key] = (self.ours if is_ours else self.theirs).quick(key[1])
        quick = self._quick[key]
        return quick is not None and quick.explains(result_number(node), tensor)

    def _expectation(self, operation: fx.Node, *, is_ours: bool) -> Expectation | None:
        key = is_ours, operation
        if key not in self._expected:
            side = self.ours if is_ours else self.theirs
            self._expected[key] = side.exact(operation)
        return self._expected[key]


def _is_same(one: object, two: object) -> bool:
    """Returns whether two settings are the same, or both hide what a mask leaves out."""
    if not (isinstance(one, float) and isinstance(two, float)):
        return type(one) is not type(two) or one == two
    hides = min(abs(one), abs(two)) >= _HIDING
    return hides or abs(one - two) <= _SAME_SETTING * max(abs(one), abs(two))


def _shown(setting: object) -> str:
    return f"{setting:g}" if isinstance(setting, float) else repr(setting)
