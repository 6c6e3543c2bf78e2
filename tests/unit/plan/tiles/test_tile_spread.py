"""Compares the memory of each tile with layouts that were computed by hand."""

from __future__ import annotations

import pytest

from poptorch_emu.machine.costs.code import CodeBytes
from poptorch_emu.machine.ipu import IPU_OF_VERSION
from poptorch_emu.machine.tile_memory import IpuMemory, Peak, TileMemory
from poptorch_emu.plan.memory.memory_plan import Content, Holding, MemoryPlan, Store
from poptorch_emu.plan.tiles.tile_spread import spread_over_tiles

CHIP = next(chip for chip in IPU_OF_VERSION.values() if chip.num_tiles == 1472)
NUM_TILES = 1472


def memory_of(weight_bytes: int, io_bytes: int = 0) -> IpuMemory:
    always = ((Content.WEIGHT.value, weight_bytes),)
    return IpuMemory(3, always, Peak(10 * NUM_TILES, 64, "mm"), CodeBytes(1, 2, 3, 4), io_bytes)


def plan_of(*sizes: int) -> MemoryPlan:
    holdings = [Holding(1, Content.WEIGHT, f"w{n}", size) for n, size in enumerate(sizes)]
    # Tensors on another IPU or in streaming memory do not count.
    elsewhere = Holding(0, Content.WEIGHT, "other", 512)
    remote = Holding(1, Content.WEIGHT, "remote", 512, store=Store.REMOTE)
    return MemoryPlan((0, 3), (*holdings, elsewhere, remote))


def test_spread_when_a_tensor_is_small_then_it_lies_on_the_first_tiles() -> None:
    large, small = 256 * NUM_TILES, 300
    memory = memory_of(large + small)
    spread = spread_over_tiles(plan_of(large, small), TileMemory(CHIP, 0, (memory,)), memory)
    # 300 bytes use three tiles; rounding up the mean adds one byte to all tiles.
    assert spread["weight"] == ((256 + 100 + 1, 3), (256 + 1, NUM_TILES - 3))
    assert spread["live at the peak"] == ((10, NUM_TILES),)
    assert spread["temporary at the peak"] == ((64, NUM_TILES),)
    assert spread["program"] == ((1 + 2 + 3 + 4 + 1536, NUM_TILES),)
    assert spread.keys() == {"weight", "live at the peak", "temporary at the peak", "program"}


@pytest.mark.parametrize("count", [10, 1000])
def test_spread_when_there_are_many_small_tensors_then_no_tile_is_beyond_the_fullest(
    count: int,
) -> None:
    memory = memory_of(128 * count)
    tiles = TileMemory(CHIP, 0, (memory,))
    (first, ones), (others, rest) = spread_over_tiles(plan_of(*[128] * count), tiles, memory)[
        "weight"
    ]
    assert ones == 1 and rest == NUM_TILES - 1
    beyond = first - others
    room = tiles.largest_bytes(memory) - tiles.mean_bytes(memory)
    assert beyond == pytest.approx(min(128 * count, room), rel=0.002)
    assert first + rest * others == pytest.approx(128 * count, abs=NUM_TILES)


def test_spread_when_there_are_tiles_for_io_then_they_come_last() -> None:
    memory = memory_of(128 * 1408, io_bytes=6400)
    tiles = TileMemory(CHIP, 64, (memory,))
    spread = spread_over_tiles(plan_of(128 * 1408), tiles, memory)
    assert spread["weight"] == ((128, 1408), (0, 64))
    assert spread["I/O"] == ((0, 1408), (105, 64))
    assert all(sum(count for _, count in runs) == NUM_TILES for runs in spread.values())
