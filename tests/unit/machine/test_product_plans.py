"""The plan of a product against a scalar search, published speeds and a derived table.

Sources: hardware.md 2.2 (search and table), 6.1 C05 (speeds, read off a published figure).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poptorch_emu.machine.costs.product import Product, plan_product
from poptorch_emu.machine.costs.vertices import Precision, Window
from poptorch_emu.machine.ipu import BOW, C600, MK2

# (bytes of an operand, bytes of a sum, inputs of a block, outputs of a block)
UNITS = {
    Precision.HALF: (2, 2, 16, 16),
    Precision.MIXED: (2, 4, 16, 8),
    Precision.FLOAT: (4, 4, 8, 16),
    Precision.QUARTER: (1, 2, 32, 16),
}


def worker_cycles(precision: Precision, rows: int) -> int:
    if precision is Precision.FLOAT:
        return {0: 24, 1: 47, 2: 46}.get(rows, 46 + 8 * (rows - 3))
    if precision is Precision.QUARTER:
        return {0: 21, 1: 35, 2: 40}.get(rows, 44 + 4 * (rows - 3))
    return {0: 14, 1: 25, 2: 34}.get(rows, 30 + 4 * (rows - 3))


def up(value: int, divisor: int) -> int:
    return math.ceil(value / divisor)


@dataclass(frozen=True)
class Own:
    """A tile's part of a product: blocks of groups, rows, and blocks of both channels."""

    groups: int
    rows: int
    inputs: int
    outputs: int

    @property
    def blocks(self) -> int:
        return self.groups * self.inputs * self.outputs


# Groups, inputs and outputs of a block, and the cycles of a tile.
Scalar = tuple[int, int, int, Callable[[Own], float]]


def of_matrix_unit(product: Product) -> Scalar:
    eb, _, ig, cu = UNITS[product.precision]
    window, load = product.window, cu * ig * eb // 8

    def cycles(own: Own) -> float:
        rows = up(own.rows, 6)
        if window.num_positions == 1:
            block = 26 + load + 6 * worker_cycles(product.precision, rows)
            return 92 + 16 * own.groups * own.inputs + own.blocks * block
        row = 8 if product.precision is Precision.FLOAT else 4
        position = 15 + load + 6 * (54 + row * max(0, rows - 3))
        return 109 + own.blocks * (23 + window.num_positions * position)

    return 1, ig, cu, cycles


def sliding(product: Product, groups: int) -> Scalar:
    """Four channels and four positions at once; float sums read a line twice."""
    channels, window = 4 // groups, product.window
    passes = 2 if product.precision is Precision.MIXED else 1

    def cycles(own: Own) -> float:
        weights = 4 * groups * channels * channels * 2 // 8
        pieces = window.height * up(window.width, 4)
        line = 6 * passes * (25 + max(0, up(own.rows, 6) - 5))
        return 109 + own.blocks * (23 + pieces * (15 + weights + line))

    return groups, channels, channels, cycles


def taps(product: Product, groups: int, tap_cycles: int) -> Scalar:
    """Several groups at once, tap by tap; sums of six workers are added."""

    def cycles(own: Own) -> float:
        count = up(own.rows * own.inputs * own.outputs * product.window.num_positions, 6)
        sums = own.rows * own.outputs * groups
        return own.groups * up(6 * (104 + tap_cycles * count) + sums / 4 + sums * 6 * 4 / 8, 1)

    return groups, 1, 1, cycles


def scalars(product: Product) -> Iterator[tuple[Scalar, int]]:
    """Yields the vertices for a product, with the bytes of their sums."""
    eb, pb, _, cu = UNITS[product.precision]
    yield of_matrix_unit(product), pb
    if eb != 2 or product.count == 1:
        return
    channels = max(product.reduced, product.columns)
    for groups in (1, 2, 4):
        if product.window.width > 1 and channels <= 4 // groups:
            yield sliding(product, groups), pb
    for groups, tap_cycles in ((8, 3), (4, 2)):
        if product.columns < cu and product.count >= groups // 2:
            yield taps(product, groups, tap_cycles), 4


def scalar_search(product: Product, tiles: int, bound: float) -> tuple[float, int, int] | None:
    """Returns cycles, bytes and serial parts of the best plan that leaves no tile idle."""
    eb = UNITS[product.precision][0]
    best = None
    positions = product.window.num_positions
    for serial in (1, 2, 4, 8, 16, 32):
        for (cg, ig, cu, tile_cycles), pb in scalars(product):
            all_groups, all_in = up(product.count, cg), up(product.reduced, ig)
            all_out = up(up(product.columns, cu), serial)
            for cut in itertools.product(range(1, tiles + 1), repeat=3):
                if math.prod(cut) > tiles:
                    continue
                sr = min(product.rows, tiles // math.prod(cut))
                totals = all_groups, all_out, all_in
                groups, og, kg = map(up, totals, cut)
                r = up(product.rows, sr)
                if tuple(map(up, totals, (groups, og, kg))) != cut:
                    continue  # Would leave tiles idle.
                (_, so, sk), sr = cut, up(product.rows, r)
                g, o, k = groups * cg, og * cu, kg * ig
                left = g * (r + product.window.width - 1) * k * eb
                right, sums = g * positions * k * o * eb, g * r * o * pb
                memory = left + right + sums * (2 if sk > 1 else 1)
                if memory > bound:
                    continue
                received = left if cu < 8 else left * (1 - 1 / so)
                moved = received / (4 if so % 2 else 8)
                moved += right * (1 - 1 / sr) / 4 + sums * (1 - 1 / sk) / 4
                reduction = 3 * (20 + up(g * r * o, sk) * sk * pb / 8) if sk > 1 else 0
                sliced = right / (8 * sr) + 300 if serial > 1 else 0
                compute = tile_cycles(Own(groups, r, kg, og))
                cycles = serial * (compute + moved + reduction + sliced) + 1500
                if best is None or cycles < best[0]:
                    best = (cycles, memory, serial)
        if best is not None and serial >= 4:
            break
    return best


SHAPES = {
    "rows": st.integers(1, 300),
    "reduced": st.integers(1, 300),
    "columns": st.integers(1, 300),
    "precision": st.sampled_from(Precision),
    "tiles": st.integers(1, 40),
    "proportion": st.sampled_from([0.01, 0.05, 0.3, 0.6]),
}


def check_best(product: Product, tiles: int, proportion: float) -> None:
    found = plan_product(product, C600, tiles, proportion)
    bound = proportion * C600.tile_bytes
    while (expected := scalar_search(product, tiles, bound)) is None:
        bound = 2 * bound if bound < 2 * C600.tile_bytes else math.inf
    assert found.cycles == round(expected[0])
    # If several plans are equally fast, either may be chosen.
    assert found.temporary_bytes <= bound


@settings(max_examples=60)
@given(**SHAPES)
def test_plan_then_is_the_best_that_leaves_no_tile_idle(
    rows, reduced, columns, precision, tiles, proportion
) -> None:
    check_best(Product(rows, reduced, columns, precision), tiles, proportion)


@settings(max_examples=40)
@given(
    rows=SHAPES["rows"],
    reduced=st.integers(1, 20),
    columns=st.integers(1, 20),
    precision=SHAPES["precision"],
    count=st.integers(1, 60),
    width=st.integers(1, 9),
    tiles=SHAPES["tiles"],
)
def test_plan_of_groups_then_is_the_best_of_all_cuts_and_vertices(
    rows, reduced, columns, precision, count, width, tiles
) -> None:
    window = Window(1, width)
    check_best(Product(rows, reduced, columns, precision, count, window), tiles, 0.6)


PUBLISHED = {
    # Teraflops of a product of `rows` with a square matrix; `None` where there is no point.
    (Precision.HALF, 1024): [6.1, None, 20.5, None, 45.9, None, 89.9, None, 121, 154, 181, 207, 224,
                             225],
    (Precision.HALF, 4096): [18.5, None, 61.7, None, 131, None, 176, None, None, 225],
    (Precision.FLOAT, 1024): [3.7, 6.5, 11.1, 16.2, 21.2, 29.2, 34.3, 36.3, 43.6, 49.9, 55.5, 57.1,
                              58.6, 58.6],
    (Precision.FLOAT, 4096): [7.1, 12.4, 22.3, 31.7, 41.4, 48.6, 52.7, 54.1, 55.6, 57.1, 58.6],
}  # fmt: skip


def test_cycles_then_are_near_published_speeds() -> None:
    errors = []
    for (precision, width), speeds in PUBLISHED.items():
        for power, teraflops in enumerate(speeds):
            if teraflops is not None:
                rows = 4 << power
                plan = plan_product(Product(rows, width, width, precision), BOW, BOW.num_tiles)
                flops = 2 * rows * width * width
                errors.append(flops / plan.cycles * BOW.clock_hz / 1e12 / teraflops - 1)
    assert len(errors) == 40
    assert mean(map(abs, errors)) < 0.056
    assert abs(mean(errors)) < 0.015
    assert max(map(abs, errors)) < 0.16


@pytest.mark.parametrize(
    ("proportion", "precision", "cycles", "serial_parts", "kib"),
    [
        (0.6, Precision.HALF, 95_600, 1, 200),
        (0.6, Precision.MIXED, 165_400, 1, 248),
        (0.3, Precision.HALF, 97_000, 1, 159),
        (0.3, Precision.MIXED, 179_900, 2, 139),
        (0.15, Precision.HALF, 124_500, 4, 74),
        (0.15, Precision.MIXED, 202_600, 4, 88),
        (0.10, Precision.HALF, 150_800, 4, 62),
        (0.10, Precision.MIXED, 240_600, 8, 62),
        (0.05, Precision.HALF, 178_100, 16, 26),
        (0.05, Precision.MIXED, 301_000, 16, 31),
        (0.025, Precision.HALF, 223_300, 32, 15),
        (0.025, Precision.MIXED, 301_000, 16, 31),  # No plan: the bound is doubled.
    ],
)
def test_plan_when_the_bound_gets_smaller_then_trades_cycles_for_memory(
    proportion, precision, cycles, serial_parts, kib
) -> None:
    plan = plan_product(Product(1024, 1024, 4096, precision), BOW, BOW.num_tiles, proportion)
    assert plan.cycles == pytest.approx(cycles, abs=60)
    assert plan.serial_parts == serial_parts
    assert plan.temporary_bytes / 1024 == pytest.approx(kib, abs=0.7)


@pytest.mark.parametrize("count", [16, 100, 1000])
def test_batched_product_then_is_no_slower_than_with_a_share_of_the_tiles_for_each(count) -> None:
    one = Product(128, 64, 128, Precision.HALF)
    shared = plan_product(replace(one, count=count), MK2, MK2.num_tiles)
    assert shared.cycles <= plan_product(one, MK2, MK2.num_tiles // count).cycles


def test_groups_when_they_divide_the_tiles_badly_then_tiles_have_parts_of_several() -> None:
    """Of 1,000 groups on 1,472 tiles, a tile each would leave a third of the tiles idle."""
    one = Product(2000, 64, 64, Precision.HALF)
    found = plan_product(replace(one, count=1000), MK2, MK2.num_tiles)
    assert found.cycles < 0.85 * plan_product(one, MK2, 1).cycles


@pytest.mark.parametrize("stride", [1, 2])
def test_convolution_when_its_window_is_a_point_then_is_a_product(stride: int) -> None:
    product = Product(1000, 64, 64, Precision.HALF)
    point = replace(product, window=Window(1, 1, stride, stride))
    assert plan_product(point, MK2, MK2.num_tiles) == plan_product(product, MK2, MK2.num_tiles)


def test_convolution_when_its_window_grows_then_needs_weights_and_a_halo() -> None:
    """On one tile: 9 positions of weights, and 18 x 18 inputs for 16 x 16 outputs."""
    product = Product(256, 16, 16, Precision.HALF, window=Window(3, 3))
    plan = plan_product(product, MK2, 1)
    assert plan.temporary_bytes == 18 * 18 * 16 * 2 + 9 * 16 * 16 * 2 + 256 * 16 * 2
    assert plan.result_bytes == 256 * 16 * 2


def test_result_when_sums_are_wider_than_operands_then_is_apart() -> None:
    assert plan_product(Product(64, 64, 64, Precision.MIXED), MK2, 4).result_bytes == 0
    assert plan_product(Product(64, 64, 64, Precision.FLOAT), MK2, 4).result_bytes > 0


def test_numbers_of_8_bits_where_the_chip_has_none_then_are_refused() -> None:
    product = Product(64, 64, 64, Precision.QUARTER)
    assert plan_product(product, C600, 4).cycles > 0
    for chip in (MK2, BOW):
        with pytest.raises(ValueError, match=f"{chip.name} does not multiply numbers of 8 bits"):
            plan_product(product, chip, 4)
