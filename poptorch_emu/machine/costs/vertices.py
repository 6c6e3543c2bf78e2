"""Vertices that multiply and add, on one tile: the blocks that they process, and their cycles.

The vertex of the matrix unit takes blocks of one group. Two others take several groups with few
channels at once: one slides a window of four points along a line, the other adds up one tap after
the other. Source: PopLibs' vertices and their cycle estimates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from poptorch_emu.machine.ipu import Ipu

Array = npt.NDArray[np.int64]


class Precision(Enum):
    """Number types of the operands and of the partial sums."""

    HALF = "half"  # Half operands, half sums.
    MIXED = "mixed"  # Half operands, float sums.
    FLOAT = "float"
    QUARTER = "quarter"  # 8-bit operands, half sums. Only C600 has this unit.


@dataclass(frozen=True)
class Window:
    """The window of a convolution's input that contributes to one point of its output.

    Attributes:
        line: points in a line of the output; 0 if a line is longer than a tile's part of it.
    """

    height: int = 1
    width: int = 1
    row_stride: int = 1
    column_stride: int = 1
    line: int = 0

    @property
    def num_positions(self) -> int:
        """Products that are added up for one point and channel."""
        return self.height * self.width

    def inputs(self, points: Array) -> Array:
        """Returns the number of input points that a tile with `points` output points needs.

        Derived: the points of a tile form the rectangle that needs the fewest. If no line of the
        window overlaps with the next one, they are a piece of a line.
        """
        if self.num_positions == 1:
            return points  # A stride skips points, which the tile does not need.
        more_lines = max(0, self.height - self.row_stride)
        more_points = max(0, self.width - self.column_stride)
        ratio = self.row_stride * more_points / (self.column_stride * more_lines or 1e-9)
        longest = np.minimum(points, self.line or points)
        width = np.clip(np.sqrt(points * ratio), 1, longest)
        height = points / width * self.row_stride + more_lines
        width = width * self.column_stride + more_points
        return np.asarray(np.ceil(height * width - 1e-6), dtype=np.int64)


@dataclass(frozen=True)
class Share:
    """The part of a product on its busiest tile, for each of several cuts.

    Attributes:
        groups: blocks of groups.
        rows: rows of the left operand; points of the output for a convolution.
        inputs: blocks of the reduced axis, in a group.
        outputs: blocks of output channels, in a group.
    """

    groups: Array
    rows: Array
    inputs: Array
    outputs: Array


@dataclass(frozen=True)
class Vertex(ABC):
    """A vertex for one number type, with the sizes of its block.

    Attributes:
        operand_bytes: size of an operand's element.
        sum_bytes: size of a partial sum.
        groups: independent products in one block.
        inputs: elements of the reduced axis in one block.
        outputs: output channels in one block.
    """

    operand_bytes: int
    sum_bytes: int
    groups: int
    inputs: int
    outputs: int

    @abstractmethod
    def cycles(self, share: Share, window: Window, ipu: Ipu) -> Array:
        """Returns the cycles of a tile."""


@dataclass(frozen=True)
class MatrixVertex(Vertex):
    """The vertex of the matrix unit.

    Attributes:
        first_rows_cycles: cycles of a worker with 0, 1 and 2 rows.
        base_cycles: cycles of a worker with 3 rows.
        row_cycles: cycles of each further row.
    """

    first_rows_cycles: tuple[int, int, int]
    base_cycles: int
    row_cycles: int

    def cycles(self, share: Share, window: Window, ipu: Ipu) -> Array:
        """Returns the cycles of a tile, with a window that is moved position by position."""
        load = self.outputs * self.inputs * self.operand_bytes // ipu.load_bytes_per_cycle
        own = -(-share.rows // ipu.num_workers)
        pairs = share.groups * share.inputs * share.outputs
        if window.num_positions == 1:
            few = np.array(self.first_rows_cycles)[np.minimum(own, 2)]
            worker = np.where(own < 3, few, self.base_cycles + self.row_cycles * (own - 3))
            block = _BLOCK_CYCLES + load + ipu.num_workers * worker
            in_groups = _INPUT_GROUP_CYCLES * share.groups * share.inputs
            return np.asarray(_SUPERVISOR_CYCLES + in_groups + pairs * block)
        worker = _WINDOW_ITEM_CYCLES + self.row_cycles * np.maximum(own - 3, 0)
        block = _WINDOW_BLOCK_CYCLES + load + ipu.num_workers * worker
        block = _WINDOW_ZERO_CYCLES + window.num_positions * block
        return np.asarray(_WINDOW_CYCLES + pairs * block)


@dataclass(frozen=True)
class SlidingVertex(Vertex):
    """The vertex of the matrix unit that slides a window of four points along a line.

    Attributes:
        passes: times that a worker reads its line, because not all channels have a unit.
    """

    passes: int

    def cycles(self, share: Share, window: Window, ipu: Ipu) -> Array:
        """Returns the cycles of a tile; each worker has a piece of a line."""
        own = -(-share.rows // ipu.num_workers)
        worker = _LINE_CYCLES + np.maximum(own - _LINE_FIRST_POINTS, 0)
        weights = _LINE_WINDOW * self.groups * self.inputs * self.outputs * self.operand_bytes
        load = weights // ipu.load_bytes_per_cycle
        block = _WINDOW_BLOCK_CYCLES + load + ipu.num_workers * self.passes * worker
        windows = window.height * -(-window.width // _LINE_WINDOW)
        pairs = share.groups * share.inputs * share.outputs
        return np.asarray(_WINDOW_CYCLES + pairs * (_WINDOW_ZERO_CYCLES + windows * block))


@dataclass(frozen=True)
class TapVertex(Vertex):
    """The vertex that multiplies the taps of several groups; the workers of a tile share the taps.

    Attributes:
        tap_cycles: cycles of a worker for one tap of all groups of a block.
    """

    tap_cycles: int

    def cycles(self, share: Share, window: Window, ipu: Ipu) -> Array:
        """Returns the cycles of a tile, including the addition of the workers' sums."""
        pairs = share.rows * share.inputs * share.outputs * window.num_positions
        taps = -(-pairs // ipu.num_workers)
        num_sums = share.rows * share.outputs * self.groups
        compute = ipu.num_workers * (_TAP_START_CYCLES + self.tap_cycles * taps) + num_sums / 4
        # Add up the sums of the workers.
        compute += num_sums * ipu.num_workers * self.sum_bytes / ipu.load_bytes_per_cycle
        return np.asarray(share.groups * np.ceil(compute), dtype=np.int64)


_SUPERVISOR_CYCLES, _INPUT_GROUP_CYCLES, _BLOCK_CYCLES = 92, 16, 26
# Cycles of the vertex for larger windows: once, for each pair of groups, for each position, and for
# each item of work.
_WINDOW_CYCLES, _WINDOW_ZERO_CYCLES, _WINDOW_BLOCK_CYCLES = 109, 23, 15
_WINDOW_ITEM_CYCLES = 17 + 3 + 34
# Cycles of a worker for a line of at most this many points; each further point takes one cycle.
_LINE_WINDOW, _LINE_CYCLES, _LINE_FIRST_POINTS = 4, 10 + 15, 5
# Cycles of a worker to start, and to set its sums to zero.
_TAP_START_CYCLES = 61 + 14 + 25 + 4

_MATRIX = {
    Precision.HALF: MatrixVertex(2, 2, 1, 16, 16, (14, 25, 34), 30, 4),
    Precision.MIXED: MatrixVertex(2, 4, 1, 16, 8, (14, 25, 34), 30, 4),
    Precision.FLOAT: MatrixVertex(4, 4, 1, 8, 16, (24, 47, 46), 46, 8),
    Precision.QUARTER: MatrixVertex(1, 2, 1, 32, 16, (21, 35, 40), 44, 4),
}
# Groups and channels of a group in a block of four channels.
_SLIDING = ((4, 1), (2, 2), (1, 4))
_TAPS = TapVertex(2, 4, 8, 1, 1, 3), TapVertex(2, 4, 4, 1, 1, 2)


def matrix_vertex(precision: Precision) -> MatrixVertex:
    """Returns the vertex of the matrix unit for one number type."""
    return _MATRIX[precision]


def vertices_of(
    precision: Precision, count: int, reduced: int, columns: int, window: Window
) -> Iterator[Vertex]:
    """Yields the vertices that can compute a product and that may be the fastest.

    Args:
        precision: number types.
        count: number of independent products.
        reduced: length of the reduced axis.
        columns: output channels.
        window: window of a convolution.
    """
    matrix = _MATRIX[precision]
    yield matrix
    if precision not in (Precision.HALF, Precision.MIXED) or count == 1:
        return
    if window.width > 1 and max(reduced, columns) <= _LINE_WINDOW:
        passes = 1 if precision is Precision.HALF else 2
        for groups, channels in _SLIDING:
            if max(reduced, columns) <= channels:
                size = matrix.operand_bytes, matrix.sum_bytes
                yield SlidingVertex(*size, groups, channels, channels, passes)
    if columns < matrix.outputs:
        yield from (taps for taps in _TAPS if count >= taps.groups // 2)
