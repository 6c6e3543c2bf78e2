"""The chips, as data: what a model of the machine computes with.

Sources are named as in `docs/fidelity.md`; "derived" numbers follow from others by arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ipu:
    """One kind of IPU; rates are those of one tile.

    Attributes:
        name: for people.
        num_tiles: tiles of one IPU.
        tile_bytes: memory of one tile, code included.
        code_bytes: the part of it that instructions can run from.
        clock_hz: of the tiles.
        num_workers: threads of one tile.
        exchange_bytes_per_cycle: what a tile receives.
        load_bytes_per_cycle: of one load.
        has_quarter: whether it multiplies numbers of 8 bits.
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

# Tiles, memory and clock: published by Graphcore (Mk1: Citadel's study of it). Rates: read in
# PopLibs. The region of code of Mk2: read in an independent compiler for it; of Mk1: assumed, all.
MK1 = Ipu("Mk1", 1216, 256 * KIB, 256 * KIB, 1.6e9)
MK2 = Ipu("Mk2", 1472, 624 * KIB, 208 * KIB, 1.325e9)
BOW = Ipu("Bow", 1472, 624 * KIB, 208 * KIB, 1.85e9)
# A Mk2 on a PCIe card; tiles and clock derived from its published peak speeds.
C600 = Ipu("C600", 1472, 624 * KIB, 208 * KIB, 1.5e9, has_quarter=True)

# The numbers that PopTorch gives to versions of the hardware.
IPU_OF_VERSION = {1: MK1, 2: MK2, 21: BOW}
