"""Sums, maxima and other reductions: on each tile, and then over the tiles that have parts.

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
        num_elements: of the tensor.
        num_results: that are left.
        item_bytes: of an element.
        tiles: that share the work.
        is_inner: whether what is added up lies side by side, and so mostly on one tile.
    """
    per_cycle = _HALF_PER_CYCLE if item_bytes <= HALF_BYTES else _FLOAT_PER_CYCLE
    first = _START_CYCLES + tiles.elements(num_elements, item_bytes) / per_cycle
    depth = num_elements // max(1, num_results)
    if is_inner and num_results >= tiles.count:
        return tiles.cost(first, 1, 0.0, Evidence.SOURCE)
    parts = min(tiles.count, depth)
    own = tiles.elements(num_results, _PARTIAL_BYTES)
    second = _START_CYCLES + own * parts / _FLOAT_PER_CYCLE
    received = own * parts * _PARTIAL_BYTES
    # Over the root of the parts at a time, where that is less.
    stages = 1
    root = round(parts**0.5)
    spread = min(tiles.count, max(1, num_results) * root)
    if parts > 1 and spread > 1:
        own_root = -(-num_results * root // spread)
        staged = 2 * own_root * root
        if staged < own * parts:
            second = 2 * _START_CYCLES + staged / _FLOAT_PER_CYCLE
            received, stages = staged * _PARTIAL_BYTES, 2
    return tiles.cost(first + second, 1 + stages, received, Evidence.SOURCE)
