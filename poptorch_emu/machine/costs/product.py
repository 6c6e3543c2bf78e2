"""Plans of matrix products and convolutions on the tiles: cycles and temporary bytes.

PopLibs searches for the way to cut rows, reduced axis and output channels over the tiles, and for
the number of serial parts, that takes the fewest cycles within a bound on temporary memory. This
file does the same search with the dominant terms. A convolution is a product whose rows are the
points of its output. Each of its tiles also needs a halo of the input. Source: PopLibs' planner and
its cycle estimates, and two constants fitted to 40 measured products (`docs/fidelity.md`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from poptorch_emu.machine.costs.vertices import (
    Array,
    Precision,
    Share,
    Vertex,
    Window,
    matrix_vertex,
    vertices_of,
)
from poptorch_emu.machine.ipu import Ipu

_SERIAL_PARTS = (1, 2, 4, 8, 16, 32)
_ENOUGH_SERIAL_PARTS = 4
_REDUCTION_CYCLES, _SLICE_CYCLES = 20, 300
# Fitted to the measured products.
_REDUCTION_FACTOR, FIXED_CYCLES = 3, 1500

DEFAULT_PROPORTION = 0.6
_LEAST_BOUND_BYTES = 512


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
    bound = max(proportion * ipu.tile_bytes, _LEAST_BOUND_BYTES)
    while True:
        plan = _search(product, ipu, num_tiles, bound)
        if plan is not None:
            return plan
        bound = 2 * bound if bound < 2 * ipu.tile_bytes else float("inf")


def least_tile_cycles(product: Product) -> float:
    """Returns the cycles on one tile if its multiply-accumulate unit is never idle (derived)."""
    unit = matrix_vertex(product.precision)
    per_cycle = unit.inputs * unit.outputs / unit.row_cycles
    num_products = product.rows * product.reduced * product.columns * product.count
    return num_products * product.window.num_positions / per_cycle


def _search(product: Product, ipu: Ipu, num_tiles: int, bound: float) -> Plan | None:
    best = None
    shape = product.precision, product.count, product.reduced, product.columns, product.window
    for parts in _SERIAL_PARTS:
        for vertex in vertices_of(*shape):
            found = _cheapest(product, vertex, ipu, num_tiles, parts, bound)
            if found is not None and (best is None or found.cycles < best.cycles):
                best = found
        if best is not None and parts >= _ENOUGH_SERIAL_PARTS:
            break
    return best


def _cheapest(
    product: Product, vertex: Vertex, ipu: Ipu, num_tiles: int, parts: int, bound: float
) -> Plan | None:
    """Returns the best way to cut a product with `parts` serial parts over the tiles."""
    group_blocks = _up(product.count, vertex.groups)
    output_blocks = _up(_up(product.columns, vertex.outputs), parts)
    input_blocks = _up(product.reduced, vertex.inputs)
    by_group, by_output, by_input = _splits(num_tiles, group_blocks, output_blocks, input_blocks)
    by_row = np.minimum(product.rows, num_tiles // (by_group * by_output * by_input))
    # Sizes on the busiest tile. The cuts are computed again from these rounded sizes.
    share = Share(
        -(-group_blocks // by_group),
        -(-product.rows // by_row),
        -(-input_blocks // by_input),
        -(-output_blocks // by_output),
    )
    by_output, by_input = -(-output_blocks // share.outputs), -(-input_blocks // share.inputs)
    by_row = -(-product.rows // share.rows)
    groups = share.groups * vertex.groups
    columns, reduced = share.outputs * vertex.outputs, share.inputs * vertex.inputs

    left = groups * product.window.inputs(share.rows) * reduced * vertex.operand_bytes
    right = groups * product.window.num_positions * reduced * columns * vertex.operand_bytes
    sums = groups * share.rows * columns * vertex.sum_bytes
    is_cut = by_input > 1
    held = left + right + sums * np.where(is_cut, 2, 1)
    compute = vertex.cycles(share, product.window, ipu)
    exchange = ipu.exchange_bytes_per_cycle
    # Two tiles share an exchange bus, so data that both need cost half.
    left_rate = np.where(by_output % 2 == 0, 2 * exchange, exchange)
    # Operations beside a product divide channels by the blocks of the matrix unit, so that the
    # input of a vertex with other blocks is rearranged as a whole (assumed).
    is_matrix = vertex is matrix_vertex(product.precision)
    moved = (
        left * (1 - 1 / by_output if is_matrix else 1.0) / left_rate
        + right * (1 - 1 / by_row) / exchange
        + sums * (1 - 1 / by_input) / exchange
    )
    own = -(-sums // vertex.sum_bytes // by_input) * by_input * vertex.sum_bytes
    reduction = _REDUCTION_FACTOR * (_REDUCTION_CYCLES + own / ipu.load_bytes_per_cycle)
    sliced = right / (ipu.load_bytes_per_cycle * by_row) + _SLICE_CYCLES if parts > 1 else 0
    cycles = parts * (compute + moved + np.where(is_cut, reduction, 0) + sliced) + FIXED_CYCLES
    allowed = held <= bound
    if not allowed.any():
        return None
    best = int(np.argmin(np.where(allowed, cycles, np.inf)))
    # Sums that have the type of the result stay where they are.
    is_result = vertex.sum_bytes == vertex.operand_bytes
    result_bytes = int(sums[best]) if is_result else 0
    exchanged = round(parts * moved[best])
    return Plan(round(cycles[best]), int(held[best]), result_bytes, parts, exchanged)


@cache
def _splits(
    num_tiles: int, most_groups: int, most_outputs: int, most_inputs: int
) -> tuple[Array, Array, Array]:
    """Returns all cuts of groups, output channels and the reduced axis, with at most these parts.

    Cuts that would leave a tile without work are skipped. A few hundred of ten thousand remain.
    """
    cuts = [
        (by_group, by_output, by_input)
        for by_group in _useful_cuts(most_groups, num_tiles)
        for by_output in _useful_cuts(most_outputs, num_tiles // by_group)
        for by_input in _useful_cuts(most_inputs, num_tiles // (by_group * by_output))
    ]
    table = np.array(cuts, dtype=np.int64)
    return table[:, 0], table[:, 1], table[:, 2]


def _useful_cuts(num_groups: int, limit: int) -> list[int]:
    """Returns, for each possible size of the largest piece, the smallest number of pieces."""
    sizes = {-(-num_groups // pieces) for pieces in range(1, min(num_groups, limit) + 1)}
    return sorted(-(-num_groups // size) for size in sizes)


def _up(value: int, divisor: int) -> int:
    return -(-value // divisor)
