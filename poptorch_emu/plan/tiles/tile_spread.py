"""What each tile of an IPU holds, by how tensors are laid out, for the model of the machine.

Source: Poplar's linear mapping (`poputil/TileMapping.cpp`) begins at tile 0 and gives each tile
that it uses 128 bytes or more, so a small tensor lies on the first tiles only. What the model knows
only as a sum, such as code and what is live at the peak, is spread evenly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from poptorch_emu.machine.tile_memory import IpuMemory, TileMemory
from poptorch_emu.plan.memory.memory_plan import Content, MemoryPlan, Store

_LEAST_BYTES = 128
_PROGRAM = ("vertex code", "vertex state", "exchange code", "control code", "stack")
_LAID_OUT = (Content.WEIGHT, Content.STATE, Content.ACCUMULATOR, Content.CONSTANT)

# (bytes, number of tiles) in the order of the tiles.
Runs = tuple[tuple[int, int], ...]


def spread_over_tiles(plan: MemoryPlan, tiles: TileMemory, memory: IpuMemory) -> dict[str, Runs]:
    """Returns what each tile of an IPU holds at the peak, by category (modelled).

    The bytes of all tiles together are those of the mean tile, and no tile holds more than the
    fullest one of `tiles`, whose further reasons are not known. Tiles for I/O come last.

    Args:
        plan: has the size of each variable.
        tiles: of the same model.
        memory: that of the IPU in `tiles`.
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
    """Returns the mean bytes of a tile by category; all of the program is one."""
    parts = tiles.parts(memory)
    program = sum(parts.pop(name) for name in _PROGRAM)
    return {**parts, "program": program}


def _extra(plan: MemoryPlan, ipu: int, content: Content, num_tiles: int) -> list[float]:
    """Returns what each tile holds of a category beyond the mean, or less than it."""
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
