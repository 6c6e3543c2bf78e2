"""Which values of the other run belong to ours, where the numbers say that others do."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import fx

from poptorch_emu.ir.graph import operation_of, record_of
from poptorch_emu.numbers.graph_values import is_view
from poptorch_emu.numbers.pair import Pair, PairAtPlace
from poptorch_emu.numbers.run import VIEW, Value

# Assumed: no more steps of one run are others in the other one, and come to the same.
_MOST_OTHER_STEPS = 4


def alternatives(pair: Pair, node: fx.Node, own: int) -> list[int]:
    """Returns the numbers of what the other run has of the same kind in the same module.

    Operations that do not depend on each other may stand in another order there.

    Args:
        pair: the runs.
        node: of our graph.
        own: the number of its present counterpart.
    """
    wanted = pair.value(node)
    return [
        number
        for number, value in enumerate(pair.theirs.values)
        if number != own and not value.name and _is_like(value, wanted)
    ]


def ends_here(both: PairAtPlace, node: fx.Node) -> bool:
    """Returns whether an infinity, such as one of a mask, is in no value that comes after."""
    later = [(both.ours.own(e), both.theirs.own(e)) for e in _next_pairs(both, node)]
    known = [(one, two) for one, two in later if one is not None and two is not None]
    return bool(known) and all(torch.equal(a.isfinite(), b.isfinite()) for a, b in known)


def is_no_pair(both: PairAtPlace, node: fx.Node, judged: Collection[fx.Node]) -> bool:
    """Returns whether what comes after is as it should be without the other run's value.

    Then both runs compute the same by other steps, such as a factor that one of them puts
    elsewhere, and the value and its supposed counterpart are different steps. They and those after
    them that are no pair either lose their counterparts, with what else these read. Where both runs
    have the same operation on the same numbers, it is a pair whatever comes after.

    Args:
        both: the runs at a place.
        node: of our graph.
        judged: what the walk has come to.
    """
    if both.is_set_otherwise(node):
        return False
    with both.wide_sums():
        return _lose_counterparts(both, node, judged)


def _lose_counterparts(both: PairAtPlace, node: fx.Node, judged: Collection[fx.Node]) -> bool:
    dropped, pending = dict[fx.Node, int](), [node]
    while pending and len(dropped) < _MOST_OTHER_STEPS:
        each = pending.pop(0)
        # What was dropped since may have explained it.
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


def _not_judged(both: PairAtPlace, node: fx.Node, judged: Collection[fx.Node]) -> list[fx.Node]:
    """Returns what an operation reads that both runs have, and that comes later in the walk."""
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


def _next_pairs(both: PairAtPlace, node: fx.Node) -> list[fx.Node]:
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


def between(both: PairAtPlace, node: fx.Node) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """Returns the operations before a value that only one of both runs has."""
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
