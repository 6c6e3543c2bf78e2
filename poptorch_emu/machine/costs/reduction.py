"""Costs of sums, maxima and other reductions: first on each tile, then over the tiles.

Source: PopLibs' reduction planner and its cycle estimates.
"""

from __future__ import annotations

from poptorch_emu.machine.costs.cost import Cost, Evidence
from poptorch_emu.machine.costs.tiles import HALF_BYTES, Tiles

_HALF_PER_CYCLE, _FLOAT_PER_CYCLE = 4, 2
_START_CYCLES = 6 * 17
_PARTIAL_BYTES = 4  # Sums are kept in float.


def reduction(
    num_elements: int, num_results: int, item_bytes: int, tiles: Tiles, is_inner: bool
) -> Cost:
    """Returns the cost of reducing a tensor.

    Args:
        num_elements: elements of the tensor.
        num_results: elements of the result.
        item_bytes: size of an element.
        tiles: tiles that share the work.
        is_inner: whether the elements of one sum lie side by side, and so mostly on one tile.
    """
    per_cycle = _HALF_PER_CYCLE if item_bytes <= HALF_BYTES else _FLOAT_PER_CYCLE
    first = _START_CYCLES + tiles.elements(num_elements, item_bytes) / per_cycle
    depth = num_elements // max(1, num_results)
    if is_inner and num_results >= tiles.count:
        return tiles.cost(first, 1, 0.0, Evidence.SOURCE)
    parts = min(tiles.count, depth)
    own = tiles.elements(num_results, _PARTIAL_BYTES)
    direct = own * parts
    once = tiles.cost(
        first + _START_CYCLES + direct / _FLOAT_PER_CYCLE,
        2,
        direct * _PARTIAL_BYTES,
        Evidence.SOURCE,
    )
    # Two stages over the square root of the parts each, if that is faster despite one more program.
    root = round(parts**0.5)
    spread = min(tiles.count, max(1, num_results) * root)
    if parts < 2 or spread < 2:
        return once
    staged = 2 * -(-num_results * root // spread) * root
    twice = tiles.cost(
        first + 2 * _START_CYCLES + staged / _FLOAT_PER_CYCLE,
        3,
        staged * _PARTIAL_BYTES,
        Evidence.SOURCE,
    )
    return min(once, twice, key=lambda cost: cost.cycles)
