"""What the tiles of a report hold, always and at the peak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


def bytes_of_tiles(memories: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[int]]:
    """Returns what tiles hold always, and what they hold beside at the peak."""
    always: list[int] = []
    others: list[int] = []
    for memory in memories:
        sums = {True: Counter[int](), False: Counter[int]()}
        num_tiles = 0
        for name, runs in memory["tiles"].items():
            held = [num_bytes for num_bytes, count in runs for _ in range(count)]
            sums[not name.endswith(" at the peak")].update(dict(enumerate(held)))
            num_tiles = len(held)
        always += (sums[True][tile] for tile in range(num_tiles))
        others += (sums[False][tile] for tile in range(num_tiles))
    return always, others
