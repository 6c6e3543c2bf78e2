"""What the tiles of each IPU would hold, as a table for people."""

from __future__ import annotations

from dataclasses import dataclass

from poptorch_emu.machine.ipu import KIB
from poptorch_emu.machine.tile_memory import TileMemory
from poptorch_emu.text_table import to_table

_NUM_SHOWN = 5


@dataclass(frozen=True)
class TileReport(TileMemory):
    """The memory of the machine's tiles, so that it can be printed."""

    @classmethod
    def of(cls, tiles: TileMemory) -> TileReport:
        """Returns `tiles` with its table."""
        return cls(**vars(tiles))

    def __str__(self) -> str:
        """Returns a table of the mean bytes of a tile, and what is live at each peak."""
        names = list(dict.fromkeys(name for memory in self.ipus for name in self.parts(memory)))
        rows = [["KiB of a tile", *(f"IPU {memory.ipu}" for memory in self.ipus)]]
        rows += [
            [name, *(_kib(self.parts(memory).get(name, 0)) for memory in self.ipus)]
            for name in names
        ]
        rows.append(["mean", *(_kib(self.mean_bytes(memory)) for memory in self.ipus)])
        rows.append(["fullest tile", *(_kib(self.largest_bytes(memory)) for memory in self.ipus)])
        if self.num_io_tiles:
            rows.append(["tile for I/O", *(_kib(self.io_tile_bytes(m)) for m in self.ipus)])
        rows.append(["fits", *map(self.verdict, self.ipus)])
        lines = to_table(rows, num_left=1)
        lines.append(
            f"A {self.chip.name} IPU has {self.chip.num_tiles} tiles of "
            f"{_kib(self.chip.tile_bytes)} KiB; {self.num_compute_tiles} of them compute."
        )
        for memory in self.ipus:
            largest = ", ".join(
                f"{name} {_size(num_bytes)}" for name, num_bytes in memory.peak.largest[:_NUM_SHOWN]
            )
            lines.append(f"IPU {memory.ipu} peaks at {memory.peak.at}: {largest or 'nothing'}")
        return "\n".join(lines)


def _size(num_bytes: int) -> str:
    return f"{_kib(num_bytes)} KiB" if num_bytes < KIB**2 else f"{num_bytes / KIB**2:.1f} MiB"


def _kib(num_bytes: int) -> str:
    return f"{num_bytes / KIB:.1f}"
