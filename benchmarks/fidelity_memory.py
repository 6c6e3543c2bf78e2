"""Compares tile memory that the machine model predicts with published figures."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from fidelity_rows import Row

from poptorch_emu.emulator.estimates import captured
from poptorch_emu.machine.spread import Subject
from poptorch_emu.machine.tile_memory import TileMemory
from poptorch_emu.plan.memory.holdings import plan_memory
from poptorch_emu.plan.tiles.tile_contents import plan_tiles

_VERDICTS = {"yes": "fits", "close": "close", "no": "does not fit"}
_PUBLISHED = {True: "fits", False: "does not fit", None: ""}

MemoryFigures = dict[str, str | int]


@dataclass(frozen=True)
class MemoryCase:
    """A row with the planned tile memory of its model."""

    row: Row
    tiles: TileMemory

    @property
    def total_bytes(self) -> int:
        """Memory of all tiles, including the parts that the row's published total includes."""
        tiles = self.tiles
        per_tile = sum(
            tiles.mean_bytes(ipu) - (0 if self.row.counts_vertex_code else ipu.code.vertex_code)
            for ipu in tiles.ipus
        )
        return per_tile * tiles.num_compute_tiles

    @property
    def amounts(self) -> dict[Subject, float]:
        """Bytes of all tiles by subject."""
        found = [self.tiles.fullest(ipu).amounts for ipu in self.tiles.ipus]
        subjects = Subject.TENSOR, Subject.PROGRAM
        return {each: sum(amounts[each] for amounts in found) for each in subjects}

    @property
    def always_live_bytes(self) -> int:
        """Always-live memory, including the programs."""
        tiles = self.tiles
        programs = tiles.num_compute_tiles * sum(ipu.code.total for ipu in tiles.ipus)
        return programs + sum(num_bytes for ipu in tiles.ipus for _, num_bytes in ipu.always_live)

    def _likely(self) -> tuple[float, float]:
        return max(self.tiles.fullest(ipu).interval for ipu in self.tiles.ipus)

    def figures(self) -> MemoryFigures:
        """Returns a row of `results/fidelity_memory.csv`; unpublished figures are empty."""
        row, tiles = self.row, self.tiles
        verdict = max(map(tiles.verdict, tiles.ipus), key=list(_VERDICTS).index)
        return {
            "row": row.name,
            "model": row.what,
            "published": _PUBLISHED[row.fits],
            "predicted": _VERDICTS[verdict],
            "total_bytes": self.total_bytes,
            "published_total_bytes": row.total_bytes or "",
            "fullest_tile_bytes": max(map(tiles.largest_bytes, tiles.ipus)),
            "published_fullest_tile_bytes": row.largest_tile_bytes or "",
            "likely": " to ".join(str(round(f)) for f in self._likely()),
            "always_live_bytes": self.always_live_bytes,
            "published_always_live_bytes": row.always_live_bytes or "",
        }


def planned(row: Row) -> MemoryCase:
    """Returns the planned tile memory of a row's model, traced on the meta device."""
    with torch.device("meta"):
        model, inputs = row.build()
    _, inventory = captured(model, inputs, {})
    model.destroy()
    return MemoryCase(row, plan_tiles(inventory, plan_memory(inventory)))
