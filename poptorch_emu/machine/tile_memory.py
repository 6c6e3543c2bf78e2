"""The memory of the tiles of each IPU as a value, and the verdict whether it fits.

Tensors are spread evenly over the tiles of an IPU. The fullest tile holds more than the mean by a
published ratio. The caller supplies the sizes for each whole IPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from poptorch_emu.machine.costs.code import CodeBytes
from poptorch_emu.machine.ipu import Ipu
from poptorch_emu.machine.spread import Figure, Subject
from poptorch_emu.printed.records import Record

# Fitted to three published pairs of mean and fullest tile (`docs/fidelity.md`).
FULLEST_PER_MEAN, FULLEST_REST_BYTES = 1.09, 10_000
# Assumed size of the stacks of six workers and their supervisor.
STACK_BYTES = 1536
# Overhead of a tile for I/O. Source: Graphcore's guide to memory and performance.
_IO_OVERHEAD = 1.05


def fullest_bytes(mean_bytes: float) -> int:
    """Returns the bytes on the fullest tile of an IPU, from the mean of its tiles."""
    return round(FULLEST_PER_MEAN * mean_bytes) + FULLEST_REST_BYTES


@dataclass(frozen=True)
class Peak(Record):
    """The moment at which an IPU holds the most bytes.

    Attributes:
        num_bytes: bytes on the IPU at that moment, without the always-live bytes.
        temporary_bytes: bytes on one tile for the operation that runs.
        at: name of the operation, or of the transfer or update, that runs at that moment.
        largest: name and bytes of the largest values, in falling order.
    """

    num_bytes: int
    temporary_bytes: int
    at: str
    largest: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class IpuMemory(Record):
    """The memory of one IPU of a replica.

    Attributes:
        ipu: the user's number of the IPU.
        always_live: name and bytes of each kind of tensor that is held for the whole program.
        peak: the moment at which the IPU holds the most bytes.
        code: bytes of the program on one tile.
        io_bytes: bytes on all tiles that are set apart for I/O.
        host_bytes: bytes that the host keeps ready for the IPU.
    """

    ipu: int
    always_live: tuple[tuple[str, int], ...]
    peak: Peak
    code: CodeBytes
    io_bytes: int = 0
    host_bytes: int = 0


@dataclass(frozen=True)
class TileMemory:
    """The memory of all IPUs of one replica.

    Attributes:
        chip: kind of every IPU.
        num_io_tiles: number of tiles of each IPU that are set apart for I/O.
        ipus: memory of each IPU.
    """

    chip: Ipu
    num_io_tiles: int
    ipus: tuple[IpuMemory, ...]

    @property
    def num_compute_tiles(self) -> int:
        """Number of tiles of an IPU that compute."""
        return self.chip.num_tiles - self.num_io_tiles

    @property
    def shortages(self) -> tuple[str, ...]:
        """One sentence for each IPU that does not fit; empty if the model fits."""
        return tuple(filter(None, map(self.shortage, self.ipus)))

    @property
    def fits(self) -> bool:
        """Whether the model may fit, because no interval is above the memory of a tile."""
        return not self.shortages

    @property
    def is_within(self) -> bool:
        """Whether the model fits by the predicted figures, without their intervals."""
        return self.fits and self.most_bytes <= self.chip.tile_bytes

    def parts(self, memory: IpuMemory) -> dict[str, int]:
        """Returns the mean bytes on a computing tile by purpose."""
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
        """Returns the mean bytes on a computing tile of an IPU at its peak."""
        return sum(self.parts(memory).values())

    def largest_bytes(self, memory: IpuMemory) -> int:
        """Returns the bytes on the fullest tile of an IPU."""
        return fullest_bytes(self.mean_bytes(memory))

    def fullest(self, memory: IpuMemory) -> Figure:
        """Returns the bytes on the fullest tile of an IPU with their interval."""
        mean_bytes, program = self.mean_bytes(memory), memory.code.total + STACK_BYTES
        amounts = {Subject.TENSOR: float(mean_bytes - program), Subject.PROGRAM: float(program)}
        return Figure(self.largest_bytes(memory), amounts)

    def verdict(self, memory: IpuMemory) -> str:
        """Returns "yes" if an IPU fits, "no" if not, and "close" if the interval has the limit."""
        if self.shortage(memory):
            return "no"
        return "yes" if self.fullest(memory).interval[1] <= self.chip.tile_bytes else "close"

    @property
    def most_bytes(self) -> int:
        """Bytes on the fullest tile of all IPUs."""
        return max(map(self.largest_bytes, self.ipus))

    @property
    def most(self) -> Figure:
        """Bytes on the fullest tile of all IPUs with their interval."""
        return max(map(self.fullest, self.ipus), key=lambda figure: figure.value)

    @property
    def worst_verdict(self) -> str:
        """The worst verdict of all IPUs."""
        return max(map(self.verdict, self.ipus), key=("yes", "close", "no").index)

    def io_tile_bytes(self, memory: IpuMemory) -> int:
        """Returns the bytes on each tile for I/O; 0 if the IPU has no such tiles."""
        if not self.num_io_tiles:
            return 0
        return round(_IO_OVERHEAD * memory.io_bytes / self.num_io_tiles)

    def shortage(self, memory: IpuMemory) -> str:
        """Returns why the tiles of an IPU do not fit, and "" if they may fit.

        The words are Poplar's.
        """
        tile = memory.ipu * self.chip.num_tiles
        limit_bytes = self.chip.tile_bytes
        program = memory.code.total - memory.code.vertex_state
        code = round(Figure(program, {Subject.PROGRAM: 1.0}).interval[0])
        largest_bytes, io_bytes = self.largest_bytes(memory), self.io_tile_bytes(memory)
        if code > self.chip.code_bytes:
            return (
                f"tile {tile} _poplar_start must be 0 not {limit_bytes} bytes from the start of "
                f"memory. Typically this error occurs when there is too much code: it takes {code} "
                f"bytes or more, but only {self.chip.code_bytes} bytes of a tile can hold code"
            )
        if self.fullest(memory).interval[0] > limit_bytes:
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
