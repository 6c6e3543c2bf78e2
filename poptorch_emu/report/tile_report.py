"""The contents of the tiles of each IPU, as a table for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from poptorch_emu.machine.ipu import KIB
from poptorch_emu.machine.tile_memory import TileMemory
from poptorch_emu.report.likely import likely_text
from poptorch_emu.report.pictures import axes_or_new, draw_limit, draw_stacks
from poptorch_emu.report.printed_report import PrintedReport, Table

_NUM_SHOWN = 5


@dataclass(frozen=True)
class TileReport(TileMemory, PrintedReport):
    """The memory of the machine's tiles, as a report that can be printed.

    The table shows the mean bytes of a tile, and the notes the live tensors at each IPU's peak.
    """

    def _parts(self, columns: int) -> list[str | Table]:
        return [Table(self._rows(), 1), *self._notes()]

    def plot(self, axes: Any = None) -> Any:
        """Draws the mean tile of each IPU at its peak, in KiB, and its fullest tile.

        Arguments, result and errors are those of `SchedulePlan.plot`.
        """
        axes = axes_or_new(axes, 4.0 + 0.6 * len(self.ipus), 4.0)
        parts = {
            name: [self.parts(memory).get(name, 0) / KIB for memory in self.ipus]
            for name in self._names()
        }
        draw_stacks(axes, [f"IPU {memory.ipu}" for memory in self.ipus], parts)
        fullest = [self.largest_bytes(memory) / KIB for memory in self.ipus]
        axes.plot(range(len(fullest)), fullest, "kD", markersize=5, zorder=3)
        axes.set_ylabel("KiB of a tile (bar: mean, diamond: fullest)")
        axes.set_ylim(0, 1.08 * max(fullest))
        limit = self.chip.tile_bytes / KIB
        draw_limit(axes, limit, f"limit {limit:.0f} KiB")
        return axes

    def _names(self) -> list[str]:
        return list(dict.fromkeys(name for memory in self.ipus for name in self.parts(memory)))

    def _rows(self) -> list[list[str]]:
        rows = [["KiB of a tile", *(f"IPU {memory.ipu}" for memory in self.ipus)]]
        rows += [
            [name, *(_kib(self.parts(memory).get(name, 0)) for memory in self.ipus)]
            for name in self._names()
        ]
        rows.append(["mean", *(_kib(self.mean_bytes(memory)) for memory in self.ipus)])
        rows.append(["fullest tile", *(_kib(self.largest_bytes(memory)) for memory in self.ipus)])
        rows.append(["likely", *(likely_text(self.fullest(m), KIB) for m in self.ipus)])
        if self.num_io_tiles:
            rows.append(["tile for I/O", *(_kib(self.io_tile_bytes(m)) for m in self.ipus)])
        rows.append(["fits", *map(self.verdict, self.ipus)])
        return rows

    def _notes(self) -> list[str]:
        lines = [
            f"A {self.chip.name} IPU has {self.chip.num_tiles} tiles of "
            f"{_kib(self.chip.tile_bytes)} KiB; {self.num_compute_tiles} of them compute."
        ]
        for memory in self.ipus:
            largest = ", ".join(
                f"{name} {_size(num_bytes)}" for name, num_bytes in memory.peak.largest[:_NUM_SHOWN]
            )
            lines.append(f"IPU {memory.ipu} peaks at {memory.peak.at}: {largest or 'nothing'}")
        return lines


def _size(num_bytes: int) -> str:
    return f"{_kib(num_bytes)} KiB" if num_bytes < KIB**2 else f"{num_bytes / KIB**2:.1f} MiB"


def _kib(num_bytes: int) -> str:
    return f"{num_bytes / KIB:.1f}"
