"""Matches the values of two runs by their descriptions, without reading their numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from poptorch_emu.numbers.run import VIEW, Position, Value

# Operators that PyTorch replaces on the CPU: dropout becomes a product with its mask.
_WRITTEN_OUT = {"dropout": "mul", "native_dropout_backward": "mul"}


def aligned(ours: Sequence[Value], theirs: Sequence[Value]) -> dict[int, int]:
    """Returns, for values of one run, the number of the same value in another run.

    Named tensors match by name. Operations match by their order in each module and direction, as
    lines do in a comparison of two texts. If both runs have different steps at the same position,
    the last steps of the two are matched, because their results are used in the same way.
    """
    of_name = {value.name: number for number, value in enumerate(theirs) if value.name}
    found: dict[int, int] = {}
    for number, value in enumerate(ours):
        other = of_name.get(value.name) if value.name else None
        if other is not None and theirs[other].shape == value.shape:
            found[number] = other
    own_groups, other_groups = _groups(ours, found), _groups(theirs, set(found.values()))
    for key, own in own_groups.items():
        others = other_groups.get(key, [])
        matcher = SequenceMatcher(
            None,
            [_token(ours[i]) for i in own],
            [_token(theirs[i]) for i in others],
            autojunk=False,
        )
        for kind, begin, end, their_begin, their_end in matcher.get_opcodes():
            if kind == "equal":
                found |= zip(own[begin:end], others[their_begin:their_end], strict=True)
            elif kind == "replace" and _is_alike(ours[own[end - 1]], theirs[others[their_end - 1]]):
                # The last of the different steps makes the same result, perhaps an output of the
                # model.
                found[own[end - 1]] = others[their_end - 1]
    return found


def aligned_places(
    ours: Sequence[Position], theirs: Sequence[Position]
) -> dict[Position, Position]:
    """Returns, for each micro-batch of a replica, the one that reads the same rows.

    Rows go to all replicas of the first micro-batch, then to all replicas of the next one.
    """
    return dict(zip(sorted(ours), sorted(theirs), strict=False))


def _groups(values: Iterable[Value], without: Mapping[int, int] | set[int]) -> dict[Any, list[int]]:
    groups: dict[Any, list[int]] = defaultdict(list)
    for number, value in enumerate(values):
        if number not in without and value.kind != VIEW:
            groups[value.direction, value.module].append(number)
    return groups


def _is_alike(one: Value, two: Value) -> bool:
    return (one.result, one.shape) == (two.result, two.shape)


def _token(value: Value) -> Any:
    return _WRITTEN_OUT.get(value.kind, value.kind), value.result, value.shape
