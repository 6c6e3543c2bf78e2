"""Plans of matrix products and convolutions on the tiles: cycles and temporary bytes.

PopLibs searches for the way to cut rows, reduced axis and output channels over the tiles, and for
the number of serial parts, that takes the fewest cycles within a bound on temporary memory. This
file does the same search with the dominant terms. A convolution is a product whose rows are the
points of its output. Each of its tiles also needs a halo of the input. Source: PopLibs' planner and
its cycle estimates, and two constants fitted to 40 measured products (`docs/fidelity.md`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import cache

import numpy as np
import numpy.typing as npt

from poptorch_emu.machine.ipu import Ipu

Array = npt.NDArray[np.int64]


class Precision(Enum):
    """Number types of the operands and of the partial sums."""

    HALF = "half"  # Half operands, half sums.
    MIXED = "mixed"  # Half operands, float sums.
    FLOAT = "float"
    QUARTER = "quarter"  # 8-bit operands, half sums. Only C600 has this unit.


@dataclass(frozen=True)
class _Unit:
    """Block sizes and cycles of the multiply-accumulate unit for one number type.

    Attributes:
        operand_bytes: size of an operand's element.
        sum_bytes: size of a partial sum.
        inputs: elements of the reduced axis in one block.
        outputs: output channels in one block.
        first_rows_cycles: cycles of a worker with 0, 1 and 2 rows.
        base_cycles: cycles of a worker with 3 rows.
        row_cycles: cycles of each further row.
    """

    operand_bytes: int
    sum_bytes: int
    inputs: int
    outputs: int
    first_rows_cycles: tuple[int, int, int]
    base_cycles: int
    row_cycles: int


# Source: PopLibs' vertices and their cycle estimates.
_UNITS = {
    Precision.HALF: _Unit(2, 2, 16, 16, (14, 25, 34), 30, 4),
    Precision.MIXED: _Unit(2, 4, 16, 8, (14, 25, 34), 30, 4),
    Precision.FLOAT: _Unit(4, 4, 8, 16, (24, 47, 46), 46, 8),
    Precision.QUARTER: _Unit(1, 2, 32, 16, (21, 35, 40), 44, 4),
}
_SERIAL_PARTS = (1, 2, 4, 8, 16, 32)
_ENOUGH_SERIAL_PARTS = 4
_SUPERVISOR_CYCLES, _INPUT_GROUP_CYCLES, _BLOCK_CYCLES = 92, 16, 26
_REDUCTION_CYCLES, _SLICE_CYCLES = 20, 300
# Cycles of the vertex for larger windows: once, for each pair of groups, for each position, and for
# each item of work.
_WINDOW_CYCLES, _WINDOW_ZERO_CYCLES, _WINDOW_BLOCK_CYCLES = 109, 23, 15
_WINDOW_ITEM_CYCLES = 17 + 3 + 34
# Fitted to the measured products.
_REDUCTION_FACTOR, FIXED_CYCLES = 3, 1500

DEFAULT_PROPORTION = 0.6
_LEAST_BOUND_BYTES = 512


@dataclass(frozen=True)
class Window:
    """The window of a convolution's input that contributes to one point of its output."""

    height: int = 1
    width: int = 1
    row_stride: int = 1
    column_stride: int = 1

    @property
    def num_positions(self) -> int:
        """Products that are added up for one point and channel."""
        return self.height * self.width


@dataclass(frozen=True)
class Product:
    """A product (rows, reduced) x (reduced, columns), or several of one shape.

    Attributes:
        rows: rows of the left operand; points of the output for a convolution.
        reduced: length of the reduced axis; input channels for a convolution.
        columns: columns of the right operand; output channels for a convolution.
        precision: number types.
        count: number of independent products, for example the groups of a convolution.
        window: window of the convolution; a single position for a plain product.
    """

    rows: int
    reduced: int
    columns: int
    precision: Precision
    count: int = 1
    window: Window = Window()


@dataclass(frozen=True)
class Plan:
    """The plan of a product.

    Attributes:
        cycles: cycles of the whole product on its IPU.
        temporary_bytes: bytes of rearranged operands and partial sums on the busiest tile.
        result_bytes: part of `temporary_bytes` that becomes the tile's share of the result.
        serial_parts: number of parts that run one after another, each with some output channels.
        exchange_cycles: part of `cycles` that tiles spend to receive operands and sums.
    """

    cycles: int
    temporary_bytes: int
    result_bytes: int
    serial_parts: int
    exchange_cycles: int = 0

    @property
    def sync_cycles(self) -> int:
        """Part of `cycles` that every product takes, whatever its size."""
        return FIXED_CYCLES


@cache
def plan_product(
    product: Product, ipu: Ipu, num_tiles: int, proportion: float = DEFAULT_PROPORTION
) -> Plan:
    """Returns the plan with the fewest cycles within the bound on temporary memory.

    If no plan is within the bound, the bound is doubled up to twice the memory of a tile and then
    dropped, as in PopLibs. A small proportion therefore never fails by itself.

    Args:
        product: product with at least one element.
        ipu: kind of the IPU.
        num_tiles: tiles that compute. Tiles for I/O are not counted.
        proportion: fraction of a tile's memory that the product may use.

    Raises:
        ValueError: `product` has 8-bit operands and the chip cannot multiply them.
    """
    if product.precision is Precision.QUARTER and not ipu.has_quarter:
        raise ValueError(
            f"{ipu.name} does not multiply numbers of 8 bits. Choose C600, which does."
        )
    tiles = max(1, num_tiles // product.count)
    rounds = -(-product.count // num_tiles)
    bound = max(proportion * ipu.tile_bytes, _LEAST_BOUND_BYTES)
    while True:
        plan = _search(product, ipu, tiles, bound)
        if plan is not None:
            cycles = rounds * (plan.cycles - FIXED_CYCLES) + FIXED_CYCLES
            return replace(plan, cycles=cycles, exchange_cycles=rounds * plan.exchange_cycles)
        bound = 2 * bound if bound < 2 * ipu.tile_bytes else float("inf")


def least_tile_cycles(product: Product) -> float:
    """Returns the cycles on one tile if its multiply-accumulate unit is never idle (derived)."""
    unit = _UNITS[product.precision]
    per_cycle = unit.inputs * unit.outputs / unit.row_cycles
    num_products = product.rows * product.reduced * product.columns * product.count
    return num_products * product.window.num_positions / per_cycle


def _search(product: Product, ipu: Ipu, num_tiles: int, bound: float) -> Plan | None:
    best = None
    for parts in _SERIAL_PARTS:
        found = _cheapest(product, ipu, num_tiles, parts, bound)
        if found is not None and (best is None or found.cycles < best.cycles):
            best = found
        if best is not None and parts >= _ENOUGH_SERIAL_PARTS:
            break
    return best


def _cheapest(product: Product, ipu: Ipu, num_tiles: int, parts: int, bound: float) -> Plan | None:
    """Returns the best way to cut a product with `parts` serial parts over the tiles."""
    unit = _UNITS[product.precision]
    output_groups = _up(_up(product.columns, unit.outputs), parts)
    input_groups = _up(product.reduced, unit.inputs)
    by_output, by_input = _splits(num_tiles, output_groups, input_groups)
    by_row = np.minimum(product.rows, num_tiles // (by_output * by_input))
    # Sizes on the busiest tile. The cuts are computed again from these rounded sizes.
    rows = -(-product.rows // by_row)
    groups_out, groups_in = -(-output_groups // by_output), -(-input_groups // by_input)
    by_output, by_input = -(-output_groups // groups_out), -(-input_groups // groups_in)
    by_row = -(-product.rows // rows)
    columns, reduced = groups_out * unit.outputs, groups_in * unit.inputs

    left = _inputs(rows, product.window) * reduced * unit.operand_bytes
    right = product.window.num_positions * reduced * columns * unit.operand_bytes
    sums = rows * columns * unit.sum_bytes
    is_cut = by_input > 1
    held = left + right + sums * np.where(is_cut, 2, 1)
    compute = _compute_cycles(unit, ipu, product.window, rows, groups_in, groups_out)
    exchange = ipu.exchange_bytes_per_cycle
    # Two tiles share an exchange bus, so data that both need cost half.
    left_rate = np.where(by_output % 2 == 0, 2 * exchange, exchange)
    moved = (
        left * (1 - 1 / by_output) / left_rate
        + right * (1 - 1 / by_row) / exchange
        + sums * (1 - 1 / by_input) / exchange
    )
    own = -(-rows * columns // by_input) * by_input * unit.sum_bytes
    reduction = _REDUCTION_FACTOR * (_REDUCTION_CYCLES + own / ipu.load_bytes_per_cycle)
    sliced = right / (ipu.load_bytes_per_cycle * by_row) + _SLICE_CYCLES if parts > 1 else 0
    cycles = parts * (compute + moved + np.where(is_cut, reduction, 0) + sliced) + FIXED_CYCLES
    allowed = held <= bound
    if not allowed.any():
        return None
    best = int(np.argmin(np.where(allowed, cycles, np.inf)))
    # Sums that have the type of the result stay where they are.
    is_result = unit.sum_bytes == unit.operand_bytes
    result_bytes = int(sums[best]) if is_result else 0
    exchanged = round(parts * moved[best])
    return Plan(round(cycles[best]), int(held[best]), result_bytes, parts, exchanged)


def _inputs(rows: Array, window: Window) -> Array:
    """Returns the number of input points that a tile with `rows` output points needs.

    Assumed: the points of a tile form a square.
    """
    if window.num_positions == 1:
        return rows  # A stride skips points, which the tile does not need.
    side = np.sqrt(rows)
    height = side * window.row_stride + max(0, window.height - window.row_stride)
    width = side * window.column_stride + max(0, window.width - window.column_stride)
    return np.asarray(np.ceil(height * width), dtype=np.int64)


def _compute_cycles(
    unit: _Unit, ipu: Ipu, window: Window, rows: Array, groups_in: Array, groups_out: Array
) -> Array:
    load = unit.outputs * unit.inputs * unit.operand_bytes // ipu.load_bytes_per_cycle
    own = -(-rows // ipu.num_workers)
    pairs = groups_in * groups_out
    if window.num_positions == 1:
        few = np.array(unit.first_rows_cycles)[np.minimum(own, 2)]
        worker = np.where(own < 3, few, unit.base_cycles + unit.row_cycles * (own - 3))
        block = _BLOCK_CYCLES + load + ipu.num_workers * worker
        return np.asarray(_SUPERVISOR_CYCLES + _INPUT_GROUP_CYCLES * groups_in + pairs * block)
    worker = _WINDOW_ITEM_CYCLES + unit.row_cycles * np.maximum(own - 3, 0)
    block = _WINDOW_BLOCK_CYCLES + load + ipu.num_workers * worker
    block = _WINDOW_ZERO_CYCLES + window.num_positions * block
    return np.asarray(_WINDOW_CYCLES + pairs * block)


@cache
def _splits(num_tiles: int, most_outputs: int, most_inputs: int) -> tuple[Array, Array]:
    """Returns every pair of cuts whose product is at most the number of tiles.

    Cuts that would leave a tile without work are skipped. A few hundred of ten thousand pairs
    remain.
    """
    pairs = [
        (by_output, by_input)
        for by_output in _useful_cuts(most_outputs, num_tiles)
        for by_input in _useful_cuts(most_inputs, num_tiles // by_output)
    ]
    table = np.array(pairs, dtype=np.int64)
    return table[:, 0], table[:, 1]


def _useful_cuts(num_groups: int, limit: int) -> list[int]:
    """Returns, for each possible size of the largest piece, the smallest number of pieces."""
    sizes = {-(-num_groups // pieces) for pieces in range(1, min(num_groups, limit) + 1)}
    return sorted(-(-num_groups // size) for size in sizes)


def _up(value: int, divisor: int) -> int:
    return -(-value // divisor)
