"""Costs of each family of operations, by hand: hardware.md 2.4 to 2.7, on two chips."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from poptorch_emu.machine.costs import movement
from poptorch_emu.machine.costs.cost import Cost, Evidence
from poptorch_emu.machine.costs.elementwise import elementwise
from poptorch_emu.machine.costs.gather import add_rows, look_up
from poptorch_emu.machine.costs.normalisation import Sequence, sequence
from poptorch_emu.machine.costs.optimizer import Rule, accumulate, rule
from poptorch_emu.machine.costs.product import Product, plan_product
from poptorch_emu.machine.costs.recurrent import step
from poptorch_emu.machine.costs.reduction import reduction
from poptorch_emu.machine.costs.tiles import Tiles
from poptorch_emu.machine.costs.vertices import Precision
from poptorch_emu.machine.ipu import BOW, C600, MK1, MK2

STEP = 1500.0
CHIPS = [MK1, MK2]
HALF, FLOAT = 2, 4


def tiles_of(chip) -> Tiles:
    return Tiles(chip, chip.num_tiles)


def own(chip, num_elements: int, item_bytes: int) -> int:
    """Returns the elements of the fullest tile; each used tile has at least 128 bytes."""
    used = min(chip.num_tiles, math.ceil(num_elements * item_bytes / 128))
    return math.ceil(num_elements / used)


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
class TestOnAChip:
    @pytest.mark.parametrize(
        ("name", "size", "rate"),
        [("add", HALF, 0.75), ("add", FLOAT, 1.5), ("gelu", HALF, 1.25), ("select", HALF, 5.0),
         ("exp", FLOAT, 3.0), ("nobody knows it", HALF, 5.0)],
    )  # fmt: skip
    @pytest.mark.parametrize("num_elements", [100, 3_000_000])
    def test_elementwise(self, chip, name, size, rate, num_elements) -> None:
        cost = elementwise(name, num_elements, size, tiles_of(chip))
        assert cost.cycles == own(chip, num_elements, size) * rate + STEP

    def test_elementwise_when_an_operand_is_spread_then_is_exchanged(self, chip) -> None:
        cost = elementwise("add_scalar", 1_000_000, HALF, tiles_of(chip), spread_bytes=400)
        assert cost.exchange_cycles == 400 / 4

    def test_sequences(self, chip) -> None:
        elements = own(chip, 5_000_000, HALF)
        softmax = sequence(Sequence.SOFTMAX, 5_000_000, HALF, tiles_of(chip))
        assert softmax.cycles == 2.5 * elements + 6 * STEP
        norm = sequence(Sequence.NORM_GRAD, 5_000_000, HALF, tiles_of(chip))
        assert norm.cycles == 6.0 * elements + 7 * STEP

    def test_reduction_when_rows_are_whole_then_needs_no_exchange(self, chip) -> None:
        cost = reduction(8192 * 512, 8192, HALF, tiles_of(chip), is_inner=True)
        assert cost.cycles == 102 + own(chip, 8192 * 512, HALF) / 4 + STEP

    def test_reduction_when_rows_are_spread_then_partial_sums_move(self, chip) -> None:
        cost = reduction(8192 * 512, 512, HALF, tiles_of(chip), is_inner=False)
        assert cost.exchange_cycles > 0 and cost.steps >= 2
        assert cost.compute_cycles > own(chip, 8192 * 512, HALF) / 4

    def test_look_up_then_is_no_worse_than_a_cut_of_the_columns_alone(self, chip) -> None:
        # A cut by hand: 1,024 columns on as many tiles, each of which reads all indices.
        cost = look_up(30_000, 1024, 512, HALF, tiles_of(chip)).cost
        result = own(chip, 512 * 1024, HALF) * HALF
        by_columns = 180 + 512 * (19 + 2) + STEP + (result + 512 * 4) / 4
        assert STEP < cost.cycles <= by_columns

    def test_look_up_when_there_are_many_indices_then_they_are_cut_over_the_tiles(
        self, chip
    ) -> None:
        """No tile reads all indices; each part of the table is sent to the tiles that need it."""
        num_indices = 1 << 17
        cost = look_up(1024, 32, num_indices, FLOAT, tiles_of(chip)).cost
        # A cut by hand: each of 1,024 tiles receives the whole table of 128 kB.
        result = own(chip, num_indices * 32, FLOAT) * FLOAT
        looked_at = num_indices // 1024
        by_index = 180 + looked_at * (19 + 2 * 32) + (result + looked_at * 4 + 2**17) / 4 + STEP
        assert cost.cycles <= 1.2 * by_index < num_indices * 8

    def test_table_that_nearly_fills_its_tiles_then_is_not_copied(self, chip) -> None:
        """PopLibs' planner minimises memory, so only indices and rows are beside the table."""
        num_rows = 4 * chip.num_bytes // 5 // (64 * FLOAT)
        plan = look_up(num_rows, 64, 1 << 12, FLOAT, tiles_of(chip))
        assert plan.temporary_bytes <= (1 << 12) * (4 + 4)

    def test_added_rows_then_fill_the_table_first(self, chip) -> None:
        small = add_rows(1_000, 64, 100, FLOAT, tiles_of(chip)).cost
        large = add_rows(100_000, 64, 100, FLOAT, tiles_of(chip)).cost
        assert large.cycles > small.cycles > 2 * STEP

    def test_reduction_when_it_is_small_then_has_no_third_program(self, chip) -> None:
        # 128 sums of 29 parts: two stages of the sum would save cycles, but start one more program.
        cost = reduction(29 * 128, 128, FLOAT, tiles_of(chip), is_inner=False)
        assert cost.steps == 2

    def test_copies(self, chip) -> None:
        num_bytes = 128 * chip.num_tiles * 10
        assert movement.copy(num_bytes, tiles_of(chip)).cycles == 1280 / 8 + 1280 / 4 + STEP
        assert movement.relayout(num_bytes, tiles_of(chip)).cycles == 1280 / 8 + 1280 / 4

    def test_pooling(self, chip) -> None:
        elements = own(chip, 1_000_000, HALF)
        cost = movement.pool(1_000_000, 9, HALF, tiles_of(chip))
        assert cost.compute_cycles == 30 + elements * 9 * 0.75

    def test_sorting_then_takes_the_phases_of_a_bitonic_sort(self, chip) -> None:
        assert movement.sort(100_000, 1024, FLOAT, tiles_of(chip)).steps == 10 * 11 // 2

    def test_rules(self, chip) -> None:
        elements = own(chip, 10_000_000, HALF)
        adam = rule(Rule.ADAM, 10_000_000, HALF, tiles_of(chip))
        assert adam.cycles == 15 * elements + 10 * 300
        half = accumulate(10_000_000, HALF, HALF, tiles_of(chip))
        assert half.cycles == 0.75 * elements + 300
        mixed = accumulate(10_000_000, HALF, FLOAT, tiles_of(chip))
        assert mixed.cycles == 2.0 * own(chip, 10_000_000, FLOAT) + 300

    def test_recurrent_steps_then_have_a_program_for_each_gate(self, chip) -> None:
        assert step(256, 1, FLOAT, tiles_of(chip)).steps == 1 + 1
        assert step(256, 4, FLOAT, tiles_of(chip)).steps == 4 + 5


def test_costs_when_added_then_keep_the_weakest_evidence() -> None:
    measured, assumed = Cost(1.0, evidence=Evidence.MEASURED), Cost(2.0, evidence=Evidence.ASSUMED)
    assert (measured + assumed).evidence is Evidence.ASSUMED
    assert (measured + measured).evidence is Evidence.MEASURED
    assert measured.times(3).cycles == 3.0


BLOCK = 16


@example(rows=1, reduced=1, columns=12, grown="columns", precision=Precision.HALF)
@given(
    rows=st.integers(1, 40), reduced=st.integers(1, 40), columns=st.integers(1, 40),
    grown=st.sampled_from(["rows", "reduced", "columns"]), precision=st.sampled_from(Precision),
)  # fmt: skip
def test_products_when_they_grow_by_whole_blocks_of_tiles_then_take_no_fewer_cycles(
    rows, reduced, columns, grown, precision
) -> None:
    sizes = {"rows": rows, "reduced": reduced, "columns": columns}
    sizes = {name: BLOCK * size for name, size in sizes.items()}
    # An odd number of blocks cannot be divided among pairs of tiles, which share a bus.
    sizes["columns"] *= 2
    larger = {**sizes, grown: 4 * sizes[grown]}
    small, large = (
        plan_product(Product(precision=precision, **shape), C600, C600.num_tiles).cycles
        for shape in (sizes, larger)
    )
    # Rows are cut as finely as the tiles allow, which for a small product moves some bytes more
    # than it must: 4 of 1,972 cycles in the worst case seen.
    assert large >= 0.99 * small


@given(
    rows=st.integers(1, 4096), width=st.integers(16, 2048),
    proportions=st.lists(st.floats(0.05, 0.9), min_size=2, max_size=2),
)  # fmt: skip
def test_products_when_the_proportion_is_smaller_then_are_never_faster(
    rows, width, proportions
) -> None:
    product = Product(rows, width, width, Precision.HALF)
    small, large = sorted(proportions)
    slow, fast = (plan_product(product, BOW, BOW.num_tiles, p).cycles for p in (small, large))
    assert slow >= fast


@given(st.sampled_from(["add", "gelu", "select", "div"]), st.integers(1, 10**7), st.integers(1, 9))
def test_elementwise_when_there_are_more_elements_then_takes_no_fewer_cycles(
    name, count, factor
) -> None:
    tiles = tiles_of(MK2)
    more = elementwise(name, count * factor, HALF, tiles)
    assert more.cycles >= elementwise(name, count, HALF, tiles).cycles
