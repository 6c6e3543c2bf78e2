"""Bytes on each tile of a report: always live, at the peak, and by category."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


def _held(memory: Mapping[str, Any]) -> dict[str, list[int]]:
    """Returns the bytes that each tile holds, by kind of data."""
    return {
        name: [num_bytes for num_bytes, count in runs for _ in range(count)]
        for name, runs in memory["tiles"].items()
    }


def bytes_of_tiles(memories: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[int]]:
    """Returns the always-live bytes of each tile, and its further bytes at the peak."""
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


# Program categories in the spelling of `pva`. Every tile that computes holds the same number of
# bytes.
_PROGRAM = {
    "vertexCode": "vertex code",
    "vertexInstanceState": "vertex state",
    "internalExchangeCode": "exchange code",
    "controlCode": "control code",
    "stack": "stack",
}


def bytes_of_categories(memories: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Returns the bytes of each tile at the peak, by the categories of `pva`."""
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
    """Returns the always-live bytes of each tile by category: data such as weights, and code.

    The sums over categories equal the first list of `bytes_of_tiles`, because bytes that rounding
    leaves over count as vertex code.
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
