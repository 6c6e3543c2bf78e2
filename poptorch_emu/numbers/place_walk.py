"""Judges the values of two runs at one micro-batch of one replica."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import fx

from poptorch_emu.ir.graph import Graph, operation_of, record_of
from poptorch_emu.numbers.graph_values import is_view, result_number
from poptorch_emu.numbers.run import VIEW, Place, Run, Value
from poptorch_emu.numbers.side import Expectation, Side
from poptorch_emu.numbers.verdicts import (
    Difference,
    Judgement,
    Verdict,
    blind,
    given_apart,
    is_shorter,
    judged,
    relative_distance,
    same_bits,
    sample,
)

_BLIND = "It cannot be computed again, and the two are further apart than rounding takes them."
# Settings further apart than this are not the same number.
_SAME_SETTING = 1e-6
# Assumed: a mask hides numbers behind ones at least as large.
_HIDING = 1e4
# Assumed: no more steps of one run are others in the other one, and come to the same.
_MOST_OTHER_STEPS = 4
_DRAWN = (
    "The random numbers are others: they depend on the seed, the micro-batch, the replica and the "
    "order of the random operations."
)


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


class Notebook(Protocol):
    """Keeps what is found at all places.

    Attributes:
        their_numbers: of the other run's values, by our nodes; they change when another value
            turns out to be the right one.
    """

    their_numbers: dict[fx.Node, int]

    def note(self, number: int, verdict: Verdict, relative: float) -> None:
        """Counts a value."""

    def is_first(self, verdict: Verdict) -> bool:
        """Returns whether a difference of this verdict would be kept."""

    def keep(self, difference: Difference) -> None:
        """Keeps a difference if it is the first of its verdict."""

    def last_used(self, node: fx.Node) -> Sequence[fx.Node]:
        """Returns the operations whose results nobody reads after this one."""


class PlaceWalk:
    """The walk at one micro-batch of one replica."""

    def __init__(self, notebook: Notebook, pair: Pair, ours: Place, theirs: Place) -> None:
        self._notebook, self._pair, self._at = notebook, pair, ours
        numbers, scaling = notebook.their_numbers, pair.loss_scaling
        self._ours = Side(pair.graph, pair.ours, pair.numbers, ours, loss_scaling=scaling)
        self._their_numbers = numbers
        self._their_place = theirs
        self._theirs = Side(
            pair.graph, pair.theirs, numbers, theirs, loss_scaling=scaling, others=self._ours
        )
        self._follows: set[fx.Node] = set()
        self._judged: set[fx.Node] = set()
        self._expected: dict[tuple[bool, fx.Node], Expectation | None] = {}

    def walk(self, on_step: Callable[[], object]) -> None:
        """Judges each value of this place, in the order of the graph."""
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
            for each in self._notebook.last_used(node):
                for side in (self._ours, self._theirs):
                    side.forget(each)
                self._expected.pop((True, each), None)
                self._expected.pop((False, each), None)

    def _judge(self, node: fx.Node) -> None:
        ours, theirs = self._ours.own(node), self._theirs.own(node)
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
        if self._notebook.is_first(verdict):
            self._notebook.keep(
                Difference(
                    self._pair.ours.values[number], self._at, verdict, sample(ours, theirs),
                    found.reason, self._equal_inputs(operation), *self._between(node),
                )
            )  # fmt: skip

    def _found(
        self, node: fx.Node, ours: torch.Tensor, theirs: torch.Tensor
    ) -> tuple[Judgement, torch.Tensor] | None:
        """Returns what is found of a value, and the other run's; `None` if that has none."""
        if node.op == "placeholder":
            return given_apart(ours, theirs), theirs
        if self._pair.ours.values[self._pair.numbers[node]].is_random:
            return Judgement(Verdict.DIFFERENT, _DRAWN), theirs
        found = self._verdict(node, ours, theirs)
        if found.verdict >= Verdict.DIFFERENT and not self._pair.is_certain:
            for other in self._alternatives(node):
                tensor = self._pair.theirs.read(other, self._their_place)
                if tensor is None:
                    continue
                again = self._verdict(node, ours, tensor)
                if again.verdict < Verdict.DIFFERENT:
                    self._their_numbers[node] = other
                    return again, tensor
            has_gone = found.verdict is Verdict.DIFFERENT or self._ends_here(node)
            if has_gone and not self._is_set_otherwise(node) and self._is_no_pair(node):
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
            verdict = self._of_side(node, tensor, is_ours=is_ours)
            if verdict is None:
                whole = blind(ours, theirs)
                verdict, reason = whole.verdict, whole.reason
                if verdict is Verdict.DIFFERENT:
                    return Judgement(verdict, _BLIND)
            elif verdict is Verdict.DIFFERENT:
                whose = "This run's value" if is_ours else "The other run's value"
                reason = f"{whose} is not what this operation makes of that run's inputs."
                return Judgement(verdict, f"{reason} {self._other_setting(node)}".rstrip())
            worst = max(worst, verdict)
        other = self._other_setting(node)
        if other and operation_of(node) not in self._follows:
            return Judgement(Verdict.DIFFERENT, other)
        if worst is Verdict.REORDERED and is_shorter(ours.dtype, theirs.dtype):
            return Judgement(Verdict.LESS_PRECISION, f"{ours.dtype} here, {theirs.dtype} there.")
        return Judgement(worst, reason)

    def _of_side(self, node: fx.Node, tensor: torch.Tensor, *, is_ours: bool) -> Verdict | None:
        """Returns whether one run's value is what the operation makes of that run's inputs."""
        operation = operation_of(node)
        key = is_ours, operation
        if key not in self._expected:
            side = self._ours if is_ours else self._theirs
            self._expected[key] = side.exact(operation)
        expected = self._expected[key]
        if expected is None:
            return None
        return judged(expected, result_number(node), tensor)

    def _finite_fault(
        self, node: fx.Node, ours: torch.Tensor, theirs: torch.Tensor
    ) -> Judgement | None:
        """Returns what begins to be not finite in one of both runs alone."""
        if not (ours.is_floating_point() and theirs.is_floating_point()):
            return None
        here, there = ~ours.isfinite(), ~theirs.isfinite()
        if torch.equal(here, there):
            return None
        is_ours = bool((here & ~there).any())
        side = self._ours if is_ours else self._theirs
        inputs = [side.value(each) for each in operation_of(node).all_input_nodes]
        begins = all(v is None or bool(v.tensor.isfinite().all()) for v in inputs)
        if not begins:
            return Judgement(Verdict.FOLLOWS)
        whose = "This run" if is_ours else "The other run"
        return Judgement(Verdict.NOT_FINITE, f"{whose} is not finite here, of finite inputs.")

    def _ends_here(self, node: fx.Node) -> bool:
        """Returns whether an infinity, such as one of a mask, is in no value that comes after."""
        later = [(self._ours.own(each), self._theirs.own(each)) for each in self._next_pairs(node)]
        known = [(one, two) for one, two in later if one is not None and two is not None]
        return bool(known) and all(torch.equal(a.isfinite(), b.isfinite()) for a, b in known)

    def _is_no_pair(self, node: fx.Node) -> bool:
        """Returns whether what comes after is as it should be without the other run's value.

        Then both runs compute the same by other steps, such as a factor that one of them puts
        elsewhere, and the value and its supposed counterpart are different steps. They and those
        after them that are no pair either lose their counterparts, with what else these read.
        """
        self._forget_theirs()
        with self._theirs.wide_sums():
            is_no_pair = self._loses_counterparts(node)
        self._forget_theirs()
        return is_no_pair

    def _loses_counterparts(self, node: fx.Node) -> bool:
        dropped, pending = dict[fx.Node, int](), [node]
        while pending and len(dropped) < _MOST_OTHER_STEPS:
            each = pending.pop(0)
            # What was dropped since may have explained it.
            if each in dropped or (dropped and self._is_theirs_explained(each)):
                continue
            if self._pair.ours.values[self._pair.numbers[each]].name:
                break
            dropped[each] = self._their_numbers.pop(each)
            self._forget_theirs()
            pending = [*self._not_judged(each), *pending]
            later = self._next_pairs(each)
            if not later:
                pending.append(each)
                break
            pending += [after for after in later if not self._is_theirs_explained(after)]
        else:
            if not pending:
                return True
        self._their_numbers.update(dropped)
        return False

    def _not_judged(self, node: fx.Node) -> list[fx.Node]:
        """Returns what an operation reads that both runs have, and that comes later in the walk."""
        found, pending = list[fx.Node](), [*operation_of(node).all_input_nodes]
        while pending:
            each = pending.pop()
            if each.op != "call_function" or each in self._judged:
                continue
            if each in self._their_numbers:
                found.append(each)
            elif each not in self._pair.numbers:
                pending += each.all_input_nodes
        return found

    def _next_pairs(self, node: fx.Node) -> list[fx.Node]:
        """Returns the next values after `node`, in the same direction, that both runs have."""
        phase, found = record_of(node).phase, list[fx.Node]()
        pending, seen = [*node.users], set[fx.Node]()
        while pending:
            each = pending.pop(0)
            if each in seen or each.op != "call_function" or record_of(each).phase is not phase:
                continue
            seen.add(each)
            if each in self._their_numbers:
                found.append(each)
            else:
                pending += each.users
        return found

    def _is_theirs_explained(self, node: fx.Node) -> bool:
        theirs = self._theirs.own(node)
        if theirs is None:
            return False
        verdict = self._of_side(node, theirs, is_ours=False)
        if verdict is None or verdict > Verdict.REORDERED:
            return False
        expected = self._expected[False, operation_of(node)]
        assert expected is not None, "else there is no verdict"
        exact = expected.results[result_number(node)]
        return torch.equal(exact.isfinite(), theirs.isfinite())

    def _forget_theirs(self) -> None:
        self._theirs.forget_all()
        self._expected = {key: value for key, value in self._expected.items() if key[0]}

    def _alternatives(self, node: fx.Node) -> list[int]:
        """Returns the numbers of what the other run has of the same kind in the same module.

        Operations that do not depend on each other may stand in another order there.
        """
        run, wanted = self._pair.theirs, self._pair.ours.values[self._pair.numbers[node]]
        own = self._their_numbers.get(node)
        return [
            number
            for number, value in enumerate(run.values)
            if number != own and not value.name and _is_like(value, wanted)
        ]

    def _other_setting(self, node: fx.Node) -> str:
        """Returns which number or word among the arguments is another one in the other run."""
        ours, theirs = (value.settings for value in self._values_of(node))
        for name in ours.keys() & theirs.keys():
            if not _is_same(ours[name], theirs[name]):
                return f"{name} is {_shown(ours[name])} here and {_shown(theirs[name])} there."
        return ""

    def _values_of(self, node: fx.Node) -> tuple[Value, Value]:
        """Returns what a node is in both runs."""
        theirs = self._pair.theirs.values[self._their_numbers[node]]
        return self._pair.ours.values[self._pair.numbers[node]], theirs

    def _is_set_otherwise(self, node: fx.Node) -> bool:
        """Returns whether both runs have the same operation on the same numbers, set otherwise."""
        operation = operation_of(node)
        kinds = {v.kind for v in self._values_of(node)}
        inputs = operation.all_input_nodes
        return (
            len(kinds) == 1
            and bool(self._other_setting(node))
            and len(self._equal_inputs(operation)) == len(inputs)
        )

    def _equal_inputs(self, operation: fx.Node) -> tuple[str, ...]:
        titles = []
        for node in operation.all_input_nodes:
            ours, theirs = self._ours.value(node), self._theirs.value(node)
            if ours is not None and theirs is not None and same_bits(ours.tensor, theirs.tensor):
                titles.append(self._title(node))
        return tuple(titles)

    def _title(self, node: fx.Node) -> str:
        number = self._pair.numbers.get(node)
        if number is not None:
            return self._pair.ours.values[number].title
        return str(node.meta["source"].name) if node.op == "placeholder" else node.name

    def _between(self, node: fx.Node) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        """Returns the operations before a value that only one of both runs has."""
        values = self._pair.ours.values
        ours, pending, seen = [], [*operation_of(node).all_input_nodes], set()
        known: list[int] = []
        while pending:
            each = pending.pop()
            if each in seen or each.op != "call_function":
                continue
            seen.add(each)
            if each in self._their_numbers:
                known.append(self._their_numbers[each])
                continue
            if each in self._pair.numbers and not is_view(each):
                ours.append(self._pair.numbers[each])
            pending += each.all_input_nodes
        own = self._their_numbers[node]
        matched = set(self._their_numbers.values())
        start = max((number for number in known if number < own), default=own)
        theirs = [number for number in range(start + 1, own) if number not in matched]
        direction = self._pair.theirs.values[own].direction
        others = [self._pair.theirs.values[number] for number in theirs]
        others = [each for each in others if each.kind != VIEW and each.direction is direction]
        return (
            tuple(values[number] for number in sorted(ours) if not values[number].result),
            tuple(value for value in others if not value.result),
        )


def _is_like(one: Value, two: Value) -> bool:
    return (one.kind, one.result, one.shape, one.module, one.direction) == (
        two.kind, two.result, two.shape, two.module, two.direction,
    )  # fmt: skip


def _is_same(one: object, two: object) -> bool:
    """Returns whether two settings are the same, or both hide what a mask leaves out."""
    if not (isinstance(one, float) and isinstance(two, float)):
        return type(one) is not type(two) or one == two
    hides = min(abs(one), abs(two)) >= _HIDING
    return hides or abs(one - two) <= _SAME_SETTING * max(abs(one), abs(two))


def _shown(setting: object) -> str:
    return f"{setting:g}" if isinstance(setting, float) else repr(setting)
