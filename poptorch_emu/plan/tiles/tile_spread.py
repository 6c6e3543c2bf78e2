"""Spreads the memory of an IPU over its tiles by the layout of tensors, in the machine model.

Source: Poplar's linear mapping (`poputil/TileMapping.cpp`) begins at tile 0 and puts at least 128
bytes on each tile that it uses, so a small tensor is on the first tiles only. Memory that the model
knows only as a sum, for example code and live values at the peak, is spread evenly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from poptorch_emu.machine.tile_memory import IpuMemory, TileMemory
from poptorch_emu.plan.memory.memory_plan import Content, MemoryPlan, Store

_LEAST_BYTES = 128
_PROGRAM = ("vertex code", "vertex state", "exchange code", "control code", "stack")
_LAID_OUT = (Content.WEIGHT, Content.STATE, Content.ACCUMULATOR, Content.CONSTANT)

# Runs of (bytes of a tile, number of consecutive tiles with these bytes), in order.
Runs = tuple[tuple[int, int], ...]


def spread_over_tiles(plan: MemoryPlan, tiles: TileMemory, memory: IpuMemory) -> dict[str, Runs]:
    """Returns the bytes of each tile of an IPU at the peak, by category (modelled).

    The mean over all tiles is that of `tiles`. No tile exceeds the fullest tile of `tiles`, so the
    differences between tiles are scaled down if necessary. Tiles for I/O come last.

    Args:
        plan: memory plan with the size of each variable.
        tiles: memory of the tiles of the same model.
        memory: the entry of the IPU in `tiles`.
    """
    ipu, num_tiles = plan.ipu_ids.index(memory.ipu), tiles.num_compute_tiles
    even = _categories(tiles, memory)
    uneven = {
        content.value: _extra(plan, ipu, content, num_tiles)
        for content in _LAID_OUT
        if even.get(content.value)
    }
    beyond = max((sum(extra) for extra in zip(*uneven.values(), strict=True)), default=0.0)
    room = tiles.largest_bytes(memory) - tiles.mean_bytes(memory)
    part = min(1.0, room / beyond) if beyond > 0 else 0.0
    io_bytes = tiles.io_tile_bytes(memory)
    spread = {}
    for name, mean in even.items():
        extra = uneven.get(name, [0.0] * num_tiles)
        held = [max(0, round(mean + part * more)) for more in extra]
        if any(held):
            spread[name] = _runs([*held, *[0] * tiles.num_io_tiles])
    if io_bytes:
        spread["I/O"] = _runs([*[0] * num_tiles, *[io_bytes] * tiles.num_io_tiles])
    return spread


def _categories(tiles: TileMemory, memory: IpuMemory) -> dict[str, int]:
    """Returns the mean bytes of a tile by category; the whole program is one category."""
    parts = tiles.parts(memory)
    program = sum(parts.pop(name) for name in _PROGRAM)
    return {**parts, "program": program}


def _extra(plan: MemoryPlan, ipu: int, content: Content, num_tiles: int) -> list[float]:
    """Returns the bytes of a category on each tile minus the mean of the tiles."""
    steps = [0.0] * (num_tiles + 1)
    for holding in plan.select(ipu, content, Store.ON_CHIP):
        used = min(num_tiles, max(1, -(-holding.item_bytes // _LEAST_BYTES)))
        steps[0] += holding.num_bytes / used - holding.num_bytes / num_tiles
        steps[used] -= holding.num_bytes / used
    return list(_sums(steps[:num_tiles]))


def _sums(steps: Sequence[float]) -> Iterator[float]:
    total = 0.0
    for step in steps:
        total += step
        yield total


def _runs(held: Sequence[int]) -> Runs:
    return tuple((num_bytes, len(list(group))) for num_bytes, group in groupby(held))
