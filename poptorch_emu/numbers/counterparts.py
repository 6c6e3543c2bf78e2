"""Finds the values of the other run that belong to ours, if matching by order was wrong."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import fx

from poptorch_emu.ir.graph import operation_of, record_of
from poptorch_emu.numbers.graph_values import is_view
from poptorch_emu.numbers.pair import Pair, PairAtPosition
from poptorch_emu.numbers.run import VIEW, Value

# Assumed: the two runs compute the same result by at most 4 different steps in a row.
_MOST_OTHER_STEPS = 4


def alternatives(pair: Pair, node: fx.Node, own: int) -> list[int]:
    """Returns the numbers of the other run's values with the same kind, shape and module.

    One of them may be the counterpart, because independent operations may run in another order.

    Args:
        pair: the two runs.
        node: node of our graph.
        own: number of its present counterpart in the other run.
    """
    wanted = pair.value(node)
    return [
        number
        for number, value in enumerate(pair.theirs.values)
        if number != own and not value.name and _is_like(value, wanted)
    ]


def ends_here(both: PairAtPosition, node: fx.Node) -> bool:
    """Returns whether the next values agree in their finite elements, as they do after a mask."""
    later = [(both.ours.own(e), both.theirs.own(e)) for e in _next_pairs(both, node)]
    known = [(one, two) for one, two in later if one is not None and two is not None]
    return bool(known) and all(torch.equal(a.isfinite(), b.isfinite()) for a, b in known)


def is_no_pair(both: PairAtPosition, node: fx.Node, judged: Collection[fx.Node]) -> bool:
    """Returns whether the values that come next are correct without the other run's value.

    If so, the runs compute the same result by different steps, for example by scaling in another
    position. Then this function removes the counterparts of `node` and of the different steps near
    it. If both runs apply one operation to equal inputs, it removes nothing.

    Args:
        both: the two runs at one position.
        node: node of our graph.
        judged: nodes that the walk has reached.
    """
    if both.is_set_otherwise(node):
        return False
    with both.wide_sums():
        return _lose_counterparts(both, node, judged)


def _lose_counterparts(both: PairAtPosition, node: fx.Node, judged: Collection[fx.Node]) -> bool:
    dropped, pending = dict[fx.Node, int](), [node]
    while pending and len(dropped) < _MOST_OTHER_STEPS:
        each = pending.pop(0)
        # A counterpart that was removed meanwhile may have been the reason for the difference.
        if each in dropped or (dropped and both.is_theirs_explained(each)):
            continue
        if both.pair.value(each).name:
            break
        dropped[each] = both.their_numbers.pop(each)
        both.forget_theirs()
        pending = [*_not_judged(both, each, judged), *pending]
        later = _next_pairs(both, each)
        if not later:
            pending.append(each)
            break
        pending += [after for after in later if not both.is_theirs_explained(after)]
    else:
        if not pending:
            return True
    both.their_numbers.update(dropped)
    return False


def _not_judged(both: PairAtPosition, node: fx.Node, judged: Collection[fx.Node]) -> list[fx.Node]:
    """Returns the inputs of an operation that both runs have and that the walk reaches later."""
    found, pending = list[fx.Node](), [*operation_of(node).all_input_nodes]
    while pending:
        each = pending.pop()
        if each.op != "call_function" or each in judged:
            continue
        if each in both.their_numbers:
            found.append(each)
        elif each not in both.pair.numbers:
            pending += each.all_input_nodes
    return found


def _next_pairs(both: PairAtPosition, node: fx.Node) -> list[fx.Node]:
    """Returns the next values after `node`, in the same direction, that both runs have."""
    phase, found = record_of(node).phase, list[fx.Node]()
    pending, seen = [*node.users], set[fx.Node]()
    while pending:
        each = pending.pop(0)
        if each in seen or each.op != "call_function" or record_of(each).phase is not phase:
            continue
        seen.add(each)
        if each in both.their_numbers:
            found.append(each)
        else:
            pending += each.users
    return found


def between(both: PairAtPosition, node: fx.Node) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """Returns the operations directly before a value that only this or only the other run has."""
    pair, their_numbers = both.pair, both.their_numbers
    ours, pending, seen = [], [*operation_of(node).all_input_nodes], set()
    known: list[int] = []
    while pending:
        each = pending.pop()
        if each in seen or each.op != "call_function":
            continue
        seen.add(each)
        if each in their_numbers:
            known.append(their_numbers[each])
            continue
        if each in pair.numbers and not is_view(each):
            ours.append(pair.numbers[each])
        pending += each.all_input_nodes
    own = their_numbers[node]
    matched = set(their_numbers.values())
    start = max((number for number in known if number < own), default=own)
    theirs = [pair.theirs.values[n] for n in range(start + 1, own) if n not in matched]
    direction = pair.theirs.values[own].direction
    return (
        tuple(v for number in sorted(ours) if not (v := pair.ours.values[number]).result),
        tuple(v for v in theirs if v.direction is direction and v.kind != VIEW and not v.result),
    )


def _is_like(one: Value, two: Value) -> bool:
    return (one.kind, one.result, one.shape, one.module, one.direction) == (
        two.kind, two.result, two.shape, two.module, two.direction,
    )  # fmt: skip
