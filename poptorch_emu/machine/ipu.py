"""The kinds of IPU as data: tiles, memory, clock and rates.

Sources are named as in `docs/fidelity.md`. "Derived" numbers follow from others by arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ipu:
    """One kind of IPU; rates are those of one tile.

    Attributes:
        name: name in reports.
        num_tiles: number of tiles of one IPU.
        tile_bytes: memory of one tile, including its code.
        code_bytes: part of `tile_bytes` that can hold instructions.
        clock_hz: clock rate of the tiles.
        num_workers: hardware threads of one tile.
        exchange_bytes_per_cycle: bytes that a tile can receive in a cycle.
        load_bytes_per_cycle: bytes that one load instruction reads.
        has_quarter: whether the chip can multiply 8-bit numbers.
    """

    name: str
    num_tiles: int
    tile_bytes: int
    code_bytes: int
    clock_hz: float
    num_workers: int = 6
    exchange_bytes_per_cycle: int = 4
    load_bytes_per_cycle: int = 8
    has_quarter: bool = False

    @property
    def num_bytes(self) -> int:
        """Memory of one IPU."""
        return self.num_tiles * self.tile_bytes


KIB = 1024

# Source of tiles, memory and clock: Graphcore's documents, and Citadel's study for Mk1. Source of
# the rates: PopLibs. Source of Mk2's code region: an independent compiler. Mk1's is assumed to be
# the whole memory.
MK1 = Ipu("Mk1", 1216, 256 * KIB, 256 * KIB, 1.6e9)
MK2 = Ipu("Mk2", 1472, 624 * KIB, 208 * KIB, 1.325e9)
BOW = Ipu("Bow", 1472, 624 * KIB, 208 * KIB, 1.85e9)
# C600 is a Mk2 on a PCIe card. Its tiles and clock are derived from its published peak speeds.
C600 = Ipu("C600", 1472, 624 * KIB, 208 * KIB, 1.5e9, has_quarter=True)

# The numbers that PopTorch gives to versions of the hardware.
IPU_OF_VERSION = {1: MK1, 2: MK2, 21: BOW}
