"""Judges the values of two runs at one micro-batch of one replica."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import fx

from poptorch_emu.ir.graph import operation_of
from poptorch_emu.numbers.counterparts import alternatives, between, ends_here, is_no_pair
from poptorch_emu.numbers.magnitudes import is_finite
from poptorch_emu.numbers.pair import Pair, PairAtPosition
from poptorch_emu.numbers.run import Direction, Position
from poptorch_emu.numbers.run_values import last_uses
from poptorch_emu.numbers.verdicts import (
    Difference,
    Judgement,
    ModuleRow,
    Verdict,
    blind,
    given_apart,
    is_shorter,
    relative_distance,
    same_bits,
    sample,
)

_BLIND = (
    "This operation cannot be computed again, and the two values differ by more than rounding "
    "can explain."
)
_DRAWN = (
    "The two runs drew other random numbers, which depend on the seed, the micro-batch, the "
    "replica and the order of the random operations."
)


@dataclass
class _Row:
    verdict: Verdict = Verdict.EQUAL
    num_values: int = 0
    num_equal: int = 0
    relative: float = 0.0


class WalkResults:
    """Results of the walk, over all positions.

    Attributes:
        their_numbers: number of each node's value in the other run; it changes if another value
            turns out to be the right counterpart.
        first: first difference for each verdict.
        compared: numbers of this run's values that were judged.
        last_uses: for each node, the operations whose results nobody reads after it.
    """

    def __init__(self, pair: Pair) -> None:
        """Prepares the results for two runs, from the pairs that the runs have at first."""
        self.their_numbers = {
            node: pair.matched[number]
            for node, number in pair.numbers.items()
            if number in pair.matched
        }
        self.first: dict[Verdict, Difference] = {}
        self.compared: set[int] = set()
        self.last_uses = last_uses(pair.graph)
        self._values = pair.ours.values
        self._rows: dict[tuple[str, Direction], _Row] = defaultdict(_Row)

    @property
    def modules(self) -> tuple[ModuleRow, ...]:
        """Summary for each module and direction, in the order of the graph."""
        return tuple(
            ModuleRow(module, direction, row.verdict, row.num_values, row.num_equal, row.relative)
            for (module, direction), row in self._rows.items()
        )

    def note(self, number: int, verdict: Verdict, relative: float) -> None:
        """Counts a judged value in the row of its module."""
        value = self._values[number]
        self.compared.add(number)
        row = self._rows[value.module, value.direction]
        row.verdict = max(row.verdict, verdict)
        row.num_values += 1
        row.num_equal += verdict is Verdict.EQUAL
        row.relative = max(row.relative, relative)


class PositionWalk:
    """The walk at one micro-batch of one replica, with its nodes judged so far."""

    def __init__(self, notebook: WalkResults, pair: Pair, ours: Position, theirs: Position) -> None:
        self._notebook, self._pair, self._at = notebook, pair, ours
        self._both = PairAtPosition(pair, notebook.their_numbers, ours, theirs)
        self._follows: set[fx.Node] = set()
        self._judged: set[fx.Node] = set()

    def walk(self, on_step: Callable[[], object]) -> None:
        """Judges each value of this position, in the order of the graph."""
        for node in self._pair.graph.fx.nodes:
            if node.op not in ("placeholder", "call_function"):
                continue
            if node.op == "call_function":
                producers = map(operation_of, node.all_input_nodes)
                if not self._follows.isdisjoint(producers):
                    self._follows.add(operation_of(node))
            if node in self._pair.numbers:
                self._judged.add(node)
                self._judge(node)
                on_step()
            for each in self._notebook.last_uses.get(node, ()):
                self._both.forget(each)

    def _judge(self, node: fx.Node) -> None:
        ours, theirs = self._both.ours.own(node), self._both.theirs.own(node)
        if ours is None or theirs is None:
            return
        operation, number = operation_of(node), self._pair.numbers[node]
        is_tainted = operation in self._follows
        if same_bits(ours, theirs):
            if not isinstance(operation.meta["val"], (tuple, list)):
                self._follows.discard(operation)
            self._notebook.note(number, Verdict.EQUAL, 0.0)
            return
        judgement = self._found(node, ours, theirs)
        if judgement is None:
            return
        found, theirs = judgement
        if found.verdict is Verdict.EQUAL:
            self._notebook.note(number, Verdict.EQUAL, 0.0)
            return
        verdict = found.verdict
        if is_tainted and verdict < Verdict.DIFFERENT:
            verdict = Verdict.FOLLOWS
        if found.verdict >= Verdict.DIFFERENT:
            self._follows.add(operation)
        self._notebook.note(number, verdict, relative_distance(ours, theirs))
        if verdict not in self._notebook.first:
            self._notebook.first[verdict] = Difference(
                self._pair.ours.values[number], self._at, verdict, sample(ours, theirs),
                found.reason, self._equal_inputs(operation), *between(self._both, node),
            )  # fmt: skip

    def _found(
        self, node: fx.Node, ours: torch.Tensor, theirs: torch.Tensor
    ) -> tuple[Judgement, torch.Tensor] | None:
        """Returns the judgement and the other run's value; `None` if the other run has none."""
        if node.op == "placeholder":
            return given_apart(ours, theirs), theirs
        if self._pair.value(node).is_random:
            return Judgement(Verdict.DIFFERENT, _DRAWN), theirs
        found = self._verdict(node, ours, theirs)
        both = self._both
        if found.verdict >= Verdict.DIFFERENT and not self._pair.is_certain:
            for other in alternatives(self._pair, node, both.their_numbers[node]):
                tensor = both.their_value(other)
                if tensor is None:
                    continue
                again = self._verdict(node, ours, tensor)
                if again.verdict < Verdict.DIFFERENT:
                    both.their_numbers[node] = other
                    return again, tensor
            has_gone = found.verdict is Verdict.DIFFERENT or ends_here(both, node)
            if has_gone and is_no_pair(both, node, self._judged):
                return None
        return found, theirs

    def _verdict(self, node: fx.Node, ours: torch.Tensor, theirs: torch.Tensor) -> Judgement:
        if same_bits(ours, theirs):
            return Judgement(Verdict.EQUAL)
        fault = self._finite_fault(node, ours, theirs)
        if fault is not None:
            return fault
        worst, reason = Verdict.REORDERED, ""
        for is_ours, tensor in ((False, theirs), (True, ours)):
            verdict = self._both.of_side(node, tensor, is_ours=is_ours)
            if verdict is None:
                whole = blind(ours, theirs)
                verdict, reason = whole.verdict, whole.reason
                if verdict is Verdict.DIFFERENT:
                    return Judgement(verdict, _BLIND)
            elif verdict is Verdict.DIFFERENT:
                whose = "This run's value" if is_ours else "The other run's value"
                reason = f"{whose} is not the result of this operation for that run's inputs."
                return Judgement(verdict, f"{reason} {self._both.other_setting(node)}".rstrip())
            worst = max(worst, verdict)
        other = self._both.other_setting(node)
        if other and operation_of(node) not in self._follows:
            return Judgement(Verdict.DIFFERENT, other)
        if worst is Verdict.REORDERED and is_shorter(ours.dtype, theirs.dtype):
            return Judgement(Verdict.LESS_PRECISION, f"{ours.dtype} here, {theirs.dtype} there.")
        return Judgement(worst, reason)

    def _finite_fault(
        self, node: fx.Node, ours: torch.Tensor, theirs: torch.Tensor
    ) -> Judgement | None:
        """Returns the judgement on a value that is not finite in one run only, else `None`."""
        if not (ours.is_floating_point() and theirs.is_floating_point()):
            return None
        if is_finite(ours) and is_finite(theirs):
            return None
        here, there = ~ours.isfinite(), ~theirs.isfinite()
        if torch.equal(here, there):
            return None
        is_ours = bool((here & ~there).any())
        run_values = self._both.ours if is_ours else self._both.theirs
        inputs = [run_values.value(each) for each in operation_of(node).all_input_nodes]
        begins = all(v is None or is_finite(v.tensor) for v in inputs)
        if not begins:
            return Judgement(Verdict.FOLLOWS)
        whose = "This run" if is_ours else "The other run"
        return Judgement(
            Verdict.NOT_FINITE, f"{whose} is not finite here, although the inputs are finite."
        )

    def _equal_inputs(self, operation: fx.Node) -> tuple[str, ...]:
        return tuple(map(self._title, self._both.equal_inputs(operation)))

    def _title(self, node: fx.Node) -> str:
        if node in self._pair.numbers:
            return self._pair.value(node).title
        return str(node.meta["source"].name) if node.op == "placeholder" else node.name
