"""Costs of grouped convolutions with few channels, which would leave the matrix unit mostly idle.

One program computes all groups. Its vertices process eight groups of one channel at a time, and the
workers of a tile share the taps. Source: PopLibs' vertical multiply-accumulate vertex and its cycle
estimates; the spread of the work over the tiles is derived.
"""

from __future__ import annotations

from poptorch_emu.machine.costs.cost import Cost, Evidence
from poptorch_emu.machine.costs.product import FIXED_CYCLES, Precision, Product
from poptorch_emu.machine.costs.tiles import HALF_BYTES, Tiles

_GROUPS, _LEAST_GROUPS = 8, 4
_TAP_CYCLES = 3
# Cycles of a vertex: its start on each worker, and setting the sums to zero.
_START_CYCLES, _ZERO_CYCLES = 61 + 14 + 25, 4
_SUM_BYTES = 4


def vertical(product: Product, tiles: Tiles) -> Cost | None:
    """Returns the cost of a grouped product by these vertices.

    Returns `None` for float32 numbers and for fewer than four groups, because PopLibs has no such
    vertex.

    Args:
        product: `count` products of one shape. Each pair of a reduced element and an output channel
            counts as one tap.
        tiles: tiles that share the work.
    """
    is_half = product.precision in (Precision.HALF, Precision.MIXED)
    if not is_half or product.count < _LEAST_GROUPS:
        return None
    workers = tiles.chip.num_workers
    chunks = -(-product.count // _GROUPS)
    tiles_of_chunk = max(1, tiles.count // chunks)
    rounds = -(-chunks // tiles.count)
    positions = product.window.num_positions
    # The tiles of a chunk share the rows. If there are too few rows, they share the reduced axis.
    by_row = min(product.rows, tiles_of_chunk)
    by_reduced = min(product.reduced, tiles_of_chunk // by_row)
    rows, reduced = -(-product.rows // by_row), -(-product.reduced // by_reduced)
    num_sums = rows * product.columns * _GROUPS
    taps = -(-rows * product.columns * reduced * positions // workers)
    compute = workers * (_START_CYCLES + _TAP_CYCLES * taps + _ZERO_CYCLES) + num_sums / 4
    # Add up the sums of the workers, then those of the tiles that share the reduced axis.
    load = tiles.chip.load_bytes_per_cycle
    compute += num_sums * workers * _SUM_BYTES / load
    compute += num_sums * _SUM_BYTES / load if by_reduced > 1 else 0.0
    operands = (rows + positions * product.columns) * reduced * _GROUPS * HALF_BYTES
    moved = operands + (num_sums * _SUM_BYTES if by_reduced > 1 else 0)
    exchange = tiles.exchange_cycles(moved)
    return Cost(rounds * compute, rounds * exchange, FIXED_CYCLES, 1, Evidence.DERIVED)
