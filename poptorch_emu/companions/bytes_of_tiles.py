"""What the tiles of a report hold: always and at the peak, and by category."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


def _held(memory: Mapping[str, Any]) -> dict[str, list[int]]:
    """Returns what each tile holds, by kind."""
    return {
        name: [num_bytes for num_bytes, count in runs for _ in range(count)]
        for name, runs in memory["tiles"].items()
    }


def bytes_of_tiles(memories: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[int]]:
    """Returns what tiles hold always, and what they hold beside at the peak."""
    always: list[int] = []
    others: list[int] = []
    for memory in memories:
        sums = {True: Counter[int](), False: Counter[int]()}
        num_tiles = 0
        for name, held in _held(memory).items():
            sums[not name.endswith(" at the peak")].update(dict(enumerate(held)))
            num_tiles = len(held)
        always += (sums[True][tile] for tile in range(num_tiles))
        others += (sums[False][tile] for tile in range(num_tiles))
    return always, others


# The categories of the program by the names of `pva`; each tile that computes holds as much.
_PROGRAM = {
    "vertexCode": "vertex code",
    "vertexInstanceState": "vertex state",
    "internalExchangeCode": "exchange code",
    "controlCode": "control code",
    "stack": "stack",
}


def bytes_of_categories(memories: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Returns what tiles hold at the peak, by the categories of `pva`."""
    found: dict[str, list[int]] = {name: [] for name in ("variable", "constant", *_PROGRAM)}
    for memory in memories:
        held = _held(memory)
        programs, constants = held.pop("program", []), held.pop("constant", [])
        num_tiles = max(map(len, [programs, constants, *held.values()]), default=0)
        held.setdefault("none", [0] * num_tiles)
        found["variable"] += [sum(column) for column in zip(*held.values(), strict=True)]
        found["constant"] += constants or [0] * num_tiles
        parts = {part["name"]: part["bytes"] for part in memory["categories"]}
        for name, part in _PROGRAM.items():
            found[name] += [parts.get(part, 0) if one else 0 for one in programs]
    return found


def always_live(memories: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Returns what each tile holds from load to end, by category: weights and the like, and code.

    Their sums are the first list of `bytes_of_tiles`: what rounding leaves counts as vertex code.
    """
    names = {name for memory in memories for name in memory["tiles"]}
    data = sorted(name for name in names if name != "program" and not name.endswith("the peak"))
    found: dict[str, list[int]] = {name: [] for name in (*data, *_PROGRAM)}
    for memory in memories:
        held = _held(memory)
        num_tiles = max(map(len, held.values()), default=0)
        for name in data:
            found[name] += held.get(name, [0] * num_tiles)
        parts = {part["name"]: part["bytes"] for part in memory["categories"]}
        for number in range(num_tiles):
            left = held.get("program", [0] * num_tiles)[number]
            for name, part in reversed(_PROGRAM.items()):
                is_last = name == next(iter(_PROGRAM))
                taken = left if is_last else min(parts.get(part, 0), left)
                found[name].append(taken)
                left -= taken
    return found
