"""Divides the bytes of the fullest tile of each IPU among values, for the model of the machine.

Tensors are spread evenly over the tiles, so each value has the same share of every tile. The
difference between the fullest and the mean tile is a part of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import fx

from poptorch_emu.ir.graph import SourceKind, operation_of, record_of, source_of
from poptorch_emu.machine.tile_memory import IpuMemory, TileMemory
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.memory.memory_plan import Content, MemoryPlan, Store
from poptorch_emu.plan.tiles.tile_contents import begun, ports_on, walk_on
from poptorch_emu.plan.tiles.tile_stash import Stashes

# The part that the fullest tile holds beyond the mean of the tiles.
UNEVEN = "uneven spread"
_LIVE, _TEMPORARY = "live at the peak", "temporary at the peak"
_VARIABLES = (Content.WEIGHT, Content.STATE, Content.ACCUMULATOR, Content.CONSTANT)


@dataclass(frozen=True)
class TileValue:
    """A value, or a part of the program, on the fullest tile of an IPU.

    Attributes:
        name: name of the variable, title of the operation that computes it, or kind of program.
        part: part of the memory, as in `TileMemory.parts`, or `UNEVEN`.
        block: the user's block; "" if it has none.
        tile_bytes: bytes on the fullest tile. Those of a part add up to the part.
        ipu_bytes: bytes on all computing tiles of the IPU; `None` for the uneven spread.
    """

    name: str
    part: str
    block: str
    tile_bytes: int
    ipu_bytes: int | None


# Name, block and bytes on all tiles.
_Item = tuple[str, str, float]


def fullest_tiles(
    inventory: Inventory, plan: MemoryPlan, tiles: TileMemory
) -> dict[int, tuple[TileValue, ...]]:
    """Returns the values on the fullest tile of each IPU, by the user's number of the IPU.

    Their bytes add up to `tiles.largest_bytes`, and those of each part to `tiles.parts`.

    Args:
        inventory: the segments, and everything that they compute on.
        plan: the engine's memory plan of the same segments.
        tiles: memory of the tiles of the same segments.
    """
    finder = _Finder(inventory, plan, tiles)
    return {memory.ipu: tuple(finder.values(memory)) for memory in tiles.ipus}


class _Finder:
    def __init__(self, inventory: Inventory, plan: MemoryPlan, tiles: TileMemory) -> None:
        self._inventory, self._plan, self._tiles = inventory, plan, tiles
        self._stashes = Stashes(inventory)
        self._blocks = {
            source_of(node).name: record_of(next(iter(node.users))).place.block_id
            for node in inventory.graph.sources
            if node.users and source_of(node).kind in (SourceKind.VARIABLE, SourceKind.CONSTANT)
        }

    def values(self, memory: IpuMemory) -> Iterator[TileValue]:
        """Yields the values of all parts, in the order of the parts."""
        ipu, num_tiles = self._plan.ipu_ids.index(memory.ipu), self._tiles.num_compute_tiles
        peak, running = self._peak(ipu, memory)
        name, block, _ = running
        items = {
            **{content.value: list(self._variables(ipu, content)) for content in _VARIABLES},
            Content.STASH.value: list(map(self._item, self._stashes.always_live_values(ipu))),
            _LIVE: peak,
            _TEMPORARY: [(name, block, float(memory.peak.temporary_bytes * num_tiles))],
        }
        for part, part_bytes in self._tiles.parts(memory).items():
            if part_bytes:
                given = items.get(part, [(part, "", float(part_bytes * num_tiles))])
                yield from _shared(part, part_bytes, given)
        uneven = self._tiles.largest_bytes(memory) - self._tiles.mean_bytes(memory)
        yield TileValue(UNEVEN, UNEVEN, "", uneven, None)

    def _variables(self, ipu: int, content: Content) -> Iterator[_Item]:
        for holding in self._plan.select(ipu, content, Store.ON_CHIP):
            yield holding.name, self._block_of(holding.name), float(holding.num_bytes)

    def _block_of(self, variable: str) -> str:
        """Returns the block that uses a variable; that of its weight for an optimiser's state."""
        weight = variable.rpartition("___")[2]
        return self._blocks.get(variable, self._blocks.get(weight, ""))

    def _item(self, held: tuple[fx.Node | None, float]) -> _Item:
        node, num_bytes = held
        if node is None:
            return "a value of a loop", "", num_bytes
        return self._inventory.title(node), _block(node), num_bytes

    def _peak(self, ipu: int, memory: IpuMemory) -> tuple[list[_Item], _Item]:
        """Returns the values that are live at the peak, and the operation that runs then."""
        peak = memory.peak
        walk = walk_on(self._inventory, ipu, self._tiles.num_compute_tiles)
        for port in ports_on(self._inventory, ipu):
            segment, given, ending = begun(self._inventory, self._stashes, port)
            if segment.name not in peak.at:
                continue
            waiting = list(self._stashes.waiting_values(ipu, port))
            base = self._stashes.waiting_bytes(ipu, port)
            nodes = [None, *(instruction.node for instruction in segment.instructions)]
            levels = walk.levels(segment, given, ending, base)
            for (held, state), node in zip(levels, nodes, strict=True):
                if (held.at, held.num_bytes) == (peak.at, peak.num_bytes):
                    live = [*waiting, *((value, float(size)) for value, size in state.contents())]
                    running = (peak.at, "", 0.0) if node is None else self._item((node, 0.0))
                    return self._complete(list(map(self._item, live)), running, peak.num_bytes)
        # No segment has the peak, so it is the update of a weight.
        found = [(name, self._block_of(name), float(size)) for name, size in peak.largest]
        return found, (peak.at, found[0][1] if found else "", 0.0)

    def _complete(
        self, items: list[_Item], running: _Item, num_bytes: int
    ) -> tuple[list[_Item], _Item]:
        """Adds the bytes that the running operation holds within, for example in a loop's body."""
        name, block, _ = running
        inner = num_bytes - sum(size for _, _, size in items)
        if round(inner):
            items.append((f"within {name}", block, inner))
        return items, running


def _block(node: fx.Node) -> str:
    is_source = node.op == "placeholder"
    return "" if is_source else record_of(operation_of(node)).place.block_id


def _shared(part: str, part_bytes: int, items: Sequence[_Item]) -> Iterator[TileValue]:
    """Divides the bytes of a part among its values by their sizes, the largest value first."""
    whole = sum(size for _, _, size in items)
    done = 0.0
    for name, block, size in sorted(items, key=lambda item: -item[2]):
        begin, done = round(part_bytes * done / whole), done + size
        held = round(part_bytes * done / whole) - begin
        yield TileValue(name, part, block, held, round(size))
