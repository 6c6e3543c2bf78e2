"""Costs of copies into another layout, of pooling and of sorting.

Sources: rates of copies, an independent compiler for the chip; pooling and sorting, PopLibs'
cycle estimates.
"""

from __future__ import annotations

import math

from poptorch_emu.machine.costs.cost import Cost, Evidence
from poptorch_emu.machine.costs.tiles import HALF_BYTES, Tiles

_POOL_RATE, _MAX_GRADIENT_RATE = 3.0, 5.0
_POOL_ROW_CYCLES = 30
_SORT_CYCLES = 300


def copy(num_bytes: int, tiles: Tiles) -> Cost:
    """Returns the cost of a copy into another layout, which moves each byte to another tile."""
    own = tiles.bytes(num_bytes, 1)
    return tiles.cost(tiles.copy_cycles(own), 1, own, Evidence.INDEPENDENT)


def relayout(num_bytes: int, tiles: Tiles) -> Cost:
    """Returns the cost of rearranging an operand for a product, without starting a program.

    The program of the product itself starts anyway, so its start is not counted twice.
    """
    own = -(-num_bytes // tiles.count)
    return Cost(tiles.copy_cycles(own), tiles.exchange_cycles(own), evidence=Evidence.ASSUMED)


def pool(
    num_results: int, window: int, item_bytes: int, tiles: Tiles, is_max_gradient: bool = False
) -> Cost:
    """Returns the cost of pooling.

    Args:
        num_results: elements of the smaller tensor.
        window: positions of the larger tensor that one of them covers.
        item_bytes: size of an element.
        tiles: tiles that share the work.
        is_max_gradient: whether this is the gradient of max pooling.
    """
    vector = 4 if item_bytes <= HALF_BYTES else 2
    rate = _MAX_GRADIENT_RATE if is_max_gradient else _POOL_RATE
    own = tiles.elements(num_results, item_bytes)
    compute = _POOL_ROW_CYCLES + own * window * rate / vector
    return tiles.cost(compute, 1, own * item_bytes, Evidence.DERIVED)


def sort(num_elements: int, length: int, item_bytes: int, tiles: Tiles) -> Cost:
    """Returns the cost of a bitonic sort of rows of `length`, whose phases compare and swap."""
    depth = math.ceil(math.log2(max(2, length)))
    phases = depth * (depth + 1) // 2
    own = tiles.elements(num_elements, item_bytes)
    compute = phases * (tiles.chip.num_workers * own + _SORT_CYCLES)
    return tiles.cost(compute, phases, phases * own * item_bytes, Evidence.ASSUMED)
