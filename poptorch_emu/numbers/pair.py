"""Two runs of a model, and their values at one micro-batch of one replica."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import fx

from poptorch_emu.ir.graph import Graph, operation_of
from poptorch_emu.numbers.float32_results import Float32Results
from poptorch_emu.numbers.graph_values import result_number
from poptorch_emu.numbers.run import Position, Run, Value
from poptorch_emu.numbers.run_values import Expectation, RunValues
from poptorch_emu.numbers.verdicts import Verdict, judged, same_bits

# Two settings with a larger relative difference are different numbers.
_SAME_SETTING = 1e-6
# Assumed: numbers from 10,000 on serve only to mask elements, so their exact size does not matter.
_HIDING = 1e4


@dataclass(frozen=True)
class Pair:
    """Two runs and the pairs of values in them.

    Attributes:
        graph: our graph.
        ours: this run.
        theirs: the other run.
        numbers: number of each node's value in this run.
        matched: numbers of this run's values, with those of the same values in the other run.
        loss_scaling: factor of the loss before back-propagation.
        is_certain: whether the user has named the pairs, so that no other pairs are tried.
    """

    graph: Graph
    ours: Run
    theirs: Run
    numbers: Mapping[fx.Node, int]
    matched: Mapping[int, int]
    loss_scaling: float = 1.0
    is_certain: bool = False

    def value(self, node: fx.Node) -> Value:
        """Returns the description of a node's value in this run."""
        return self.ours.values[self.numbers[node]]


class PairAtPosition:
    """The values of both runs at one position, by the nodes of our graph.

    Attributes:
        pair: the two runs.
        ours: values of this run.
        theirs: values of the other run.
        their_numbers: number of each node's value in the other run; it changes if another value
            turns out to be the right counterpart.
    """

    def __init__(
        self,
        pair: Pair,
        their_numbers: MutableMapping[fx.Node, int],
        ours: Position,
        theirs: Position,
    ) -> None:
        self.pair, self.their_numbers = pair, their_numbers
        self._their_position = theirs
        scaling = pair.loss_scaling
        self.ours = RunValues(pair.graph, pair.ours, pair.numbers, ours, loss_scaling=scaling)
        self.theirs = RunValues(
            pair.graph, pair.theirs, their_numbers, theirs, loss_scaling=scaling, others=self.ours
        )
        self._expected: dict[tuple[bool, fx.Node], Expectation | None] = {}
        self._quick: dict[tuple[bool, fx.Node], Float32Results | None] = {}

    def of_side(self, node: fx.Node, tensor: torch.Tensor, *, is_ours: bool) -> Verdict | None:
        """Returns the verdict on one run's value, given that run's inputs; `None` if unknown."""
        if self._is_quickly_explained(node, tensor, is_ours=is_ours):
            return Verdict.REORDERED
        expected = self._expectation(operation_of(node), is_ours=is_ours)
        return None if expected is None else judged(expected, result_number(node), tensor)

    def is_theirs_explained(self, node: fx.Node) -> bool:
        """Returns whether rounding explains the other run's value, given that run's inputs."""
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
        return self.pair.theirs.read(number, self._their_position)

    def forget(self, operation: fx.Node) -> None:
        """Drops everything computed for an operation whose results are no longer needed."""
        self.ours.forget(operation)
        self.theirs.forget(operation)
        for is_ours in (True, False):
            self._expected.pop((is_ours, operation), None)
            self._quick.pop((is_ours, operation), None)

    def forget_theirs(self) -> None:
        """Drops everything computed from the other run's values, because pairs have changed."""
        self.theirs.forget_all()
        self._expected = {key: value for key, value in self._expected.items() if key[0]}
        self._quick = {key: value for key, value in self._quick.items() if key[0]}

    @contextmanager
    def wide_sums(self) -> Iterator[None]:
        """Assumes in a context that the other run's missing values have sums in float32."""
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
        """Returns a sentence on a setting that differs between the runs; "" if all are equal."""
        ours, theirs = self.pair.value(node).settings, self._their_value(node).settings
        for name in ours.keys() & theirs.keys():
            if not _is_same(ours[name], theirs[name]):
                return f"{name} is {_shown(ours[name])} here and {_shown(theirs[name])} there."
        return ""

    def is_set_otherwise(self, node: fx.Node) -> bool:
        """Returns whether both runs apply one operation to equal inputs with different settings."""
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
            run_values = self.ours if is_ours else self.theirs
            self._expected[key] = run_values.exact(operation)
        return self._expected[key]


def _is_same(one: object, two: object) -> bool:
    """Returns whether two settings are equal, or both so large that they only mask elements."""
    if not (isinstance(one, float) and isinstance(two, float)):
        return type(one) is not type(two) or one == two
    hides = min(abs(one), abs(two)) >= _HIDING
    return hides or abs(one - two) <= _SAME_SETTING * max(abs(one), abs(two))


def _shown(setting: object) -> str:
    return f"{setting:g}" if isinstance(setting, float) else repr(setting)
