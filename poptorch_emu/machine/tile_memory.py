"""What the tiles of each IPU hold, and whether they can: the memory model, as a value.

Whatever is spread over an IPU is spread evenly, and the fullest tile holds more than the mean by a
published ratio. Sizes of a whole IPU are given by whoever makes the value.
"""

from __future__ import annotations

from dataclasses import dataclass

from poptorch_emu.machine.costs.code import CodeBytes
from poptorch_emu.machine.ipu import Ipu

# Fitted to three published pairs of mean and fullest tile (`docs/fidelity.md`).
_LARGEST_PER_MEAN, _LARGEST_EXTRA_BYTES = 1.09, 10_000
# Of the sizes of programs, which are the least certain part: within so much of the real ones.
_PROGRAM_TOLERANCE = 0.3
# Assumed: stacks of six workers and their supervisor.
STACK_BYTES = 1536
# Of a tile for I/O. Source: Graphcore's guide to memory and performance.
_IO_OVERHEAD = 1.05


def fullest_bytes(mean_bytes: float) -> int:
    """Returns what the fullest tile of an IPU holds, from what its tiles hold on average."""
    return round(_LARGEST_PER_MEAN * mean_bytes) + _LARGEST_EXTRA_BYTES


@dataclass(frozen=True)
class Peak:
    """The moment at which an IPU holds most.

    Attributes:
        num_bytes: of the IPU, beside what is always live.
        temporary_bytes: of a tile, for the operation that runs.
        at: the operation, or what else happens then.
        largest: name and bytes of the largest values, in falling order.
    """

    num_bytes: int
    temporary_bytes: int
    at: str
    largest: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class IpuMemory:
    """What one IPU of a replica holds.

    Attributes:
        ipu: the user's number.
        always_live: name and bytes of what stays for the whole program, by kind.
        io_bytes: on the tiles that are set apart for I/O.
        host_bytes: what the host holds ready for it.
    """

    ipu: int
    always_live: tuple[tuple[str, int], ...]
    peak: Peak
    code: CodeBytes
    io_bytes: int = 0
    host_bytes: int = 0


@dataclass(frozen=True)
class TileMemory:
    """What the tiles of all IPUs of one replica hold.

    Attributes:
        chip: of every IPU.
        num_io_tiles: of each IPU, which do not compute.
    """

    chip: Ipu
    num_io_tiles: int
    ipus: tuple[IpuMemory, ...]

    @property
    def num_compute_tiles(self) -> int:
        """Tiles of an IPU that compute."""
        return self.chip.num_tiles - self.num_io_tiles

    @property
    def shortages(self) -> tuple[str, ...]:
        """Which tiles cannot hold what they must, in words; none where the model fits."""
        return tuple(filter(None, map(self.shortage, self.ipus)))

    @property
    def fits(self) -> bool:
        """Whether every tile can hold what it must, as far as is certain."""
        return not self.shortages

    def parts(self, memory: IpuMemory) -> dict[str, int]:
        """Returns the mean bytes of a computing tile, by what they are for."""
        tiles = self.num_compute_tiles
        return {
            **{name: -(-num_bytes // tiles) for name, num_bytes in memory.always_live},
            "live at the peak": -(-memory.peak.num_bytes // tiles),
            "temporary at the peak": memory.peak.temporary_bytes,
            "vertex code": memory.code.vertex_code,
            "vertex state": memory.code.vertex_state,
            "exchange code": memory.code.exchange,
            "control code": memory.code.control,
            "stack": STACK_BYTES,
        }

    def mean_bytes(self, memory: IpuMemory) -> int:
        """Returns what a computing tile of an IPU holds at its peak, on average."""
        return sum(self.parts(memory).values())

    def largest_bytes(self, memory: IpuMemory) -> int:
        """Returns what the fullest tile of an IPU holds."""
        return fullest_bytes(self.mean_bytes(memory))

    def least_bytes(self, memory: IpuMemory) -> int:
        """Returns what the fullest tile of an IPU holds if its program is smaller than expected."""
        saved = _PROGRAM_TOLERANCE * memory.code.total
        return self.largest_bytes(memory) - round(_LARGEST_PER_MEAN * saved)

    def verdict(self, memory: IpuMemory) -> str:
        """Returns "yes" if an IPU can hold what it must, "no" if it cannot, else "close"."""
        if self.shortage(memory):
            return "no"
        return "yes" if self.largest_bytes(memory) <= self.chip.tile_bytes else "close"

    @property
    def most_bytes(self) -> int:
        """What the fullest tile of all IPUs holds."""
        return max(map(self.largest_bytes, self.ipus))

    @property
    def worst_verdict(self) -> str:
        """The verdict of the IPU that is the least able to hold what it must."""
        return max(map(self.verdict, self.ipus), key=("yes", "close", "no").index)

    def io_tile_bytes(self, memory: IpuMemory) -> int:
        """Returns what each tile for I/O holds; 0 where there are none."""
        if not self.num_io_tiles:
            return 0
        return round(_IO_OVERHEAD * memory.io_bytes / self.num_io_tiles)

    def shortage(self, memory: IpuMemory) -> str:
        """Returns which tiles of an IPU cannot hold what they must, and "" if all may be able to.

        The words are Poplar's.
        """
        tile = memory.ipu * self.chip.num_tiles
        limit_bytes = self.chip.tile_bytes
        code = round((1 - _PROGRAM_TOLERANCE) * (memory.code.total - memory.code.vertex_state))
        largest_bytes, io_bytes = self.largest_bytes(memory), self.io_tile_bytes(memory)
        if code > self.chip.code_bytes:
            return (
                f"tile {tile} _poplar_start must be 0 not {limit_bytes} bytes from the start of "
                f"memory. Typically this error occurs when there is too much code: it takes {code} "
                f"bytes or more, but only {self.chip.code_bytes} bytes of a tile can hold code"
            )
        if self.least_bytes(memory) > limit_bytes:
            return (
                f"Out of memory on tile {tile}: {largest_bytes} bytes used but tiles only have "
                f"{limit_bytes} bytes of memory"
            )
        if io_bytes > limit_bytes:
            return (
                f"Out of memory on tile {tile + self.num_compute_tiles}: {io_bytes} bytes used for "
                f"I/O but tiles only have {limit_bytes} bytes of memory"
            )
        return ""
