"""Costs of looking up rows of a table and of adding rows to it: embeddings, gathers, scatters.

Each tile holds some rows and some columns of the table. It reads its part of the indices and
handles those that point to its rows. If the indices are cut, each part of the table is sent to all
tiles that look into it. The plan is the way to cut table and indices that needs the least memory,
and of those the fastest, because PopLibs' planner minimises memory unless it is told otherwise
(remembered). Source: PopLibs' `multiSlice`, `multiUpdateAdd`, their planner and cycle estimates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from poptorch_emu.machine.costs.cost import Cost, Evidence
from poptorch_emu.machine.costs.tiles import HALF_BYTES, Tiles

_START_CYCLES = 6 * 30
_LOOK_UP_CYCLES, _UPDATE_CYCLES = 19, 12
_SKIP_LOOK_UP_CYCLES, _SKIP_UPDATE_CYCLES = 8, 5
_VECTOR_CYCLES, _ATOM_CYCLES, _ATOM_BYTES = 2, 3, 4
_FILL_BYTES_PER_CYCLE = 8
_ODD_UPDATE_CYCLES = 20  # For each element if a part of a row is not a multiple of an atom.


@dataclass(frozen=True)
class RowsPlan:
    """The plan of a look-up or an update.

    Attributes:
        cost: cycles of the plan.
        temporary_bytes: bytes on the fullest tile beside the table itself: its copy of a part of
            the table, its indices and its rows.
    """

    cost: Cost
    temporary_bytes: int


@dataclass(frozen=True)
class _Cut:
    """The share of a table and its indices on the fullest tile.

    Attributes:
        row_cuts: number of parts into which the rows of the table are cut.
        width: elements of a row that the tile holds.
        looked_at: indices that the tile reads.
        own: indices among them that point to the tile's rows, if they are spread evenly.
        part: elements of the table that the tile receives, or fills beside the table; 0 if the
            indices are not cut.
    """

    row_cuts: int
    width: int
    looked_at: int
    own: int
    part: int

    @property
    def skipped(self) -> int:
        """Indices that point to rows of other tiles."""
        return self.looked_at - self.own


def look_up(
    num_rows: int,
    width: int,
    num_indices: int,
    item_bytes: int,
    tiles: Tiles,
) -> RowsPlan:
    """Returns the plan of reading `num_indices` rows of a table with `num_rows` rows.

    Args:
        num_rows: rows of the table.
        width: elements of a row.
        num_indices: number of rows to read.
        item_bytes: size of an element.
        tiles: tiles that share the work.
    """
    result = tiles.bytes(num_indices * width, item_bytes)

    def plans() -> Iterator[RowsPlan]:
        for cut in _cuts(num_rows, width, num_indices, tiles.count):
            row_bytes = cut.width * item_bytes
            atoms = -(-row_bytes // _ATOM_BYTES)
            compute = _START_CYCLES + cut.own * (_LOOK_UP_CYCLES + _VECTOR_CYCLES * atoms)
            compute += cut.skipped * _SKIP_LOOK_UP_CYCLES
            part, results = cut.part * item_bytes, result * cut.row_cuts
            received = results + cut.looked_at * _ATOM_BYTES + part
            is_reduced = cut.row_cuts > 1
            reduce = results / _FILL_BYTES_PER_CYCLE if is_reduced else 0
            cost = tiles.cost(compute + reduce, 2 if is_reduced else 1, received, Evidence.DERIVED)
            yield RowsPlan(cost, part + cut.looked_at * (_ATOM_BYTES + row_bytes))

    return min(plans(), key=_need)


def add_rows(
    num_rows: int,
    width: int,
    num_indices: int,
    item_bytes: int,
    tiles: Tiles,
) -> RowsPlan:
    """Returns the plan of adding rows to a table that is filled with zeros first.

    If the indices are cut, each part fills its own copy of the table, and the copies are added up.
    The arguments are those of `look_up`.
    """
    fill = tiles.bytes(num_rows * width, item_bytes) / _FILL_BYTES_PER_CYCLE

    def plans() -> Iterator[RowsPlan]:
        for cut in _cuts(num_rows, width, num_indices, tiles.count):
            row_bytes = cut.width * item_bytes
            per_index = _UPDATE_CYCLES + _ATOM_CYCLES * -(-row_bytes // _ATOM_BYTES)
            if item_bytes == HALF_BYTES and cut.width % 2:
                per_index = _ODD_UPDATE_CYCLES * cut.width
            compute: float = _START_CYCLES + cut.own * per_index
            compute += cut.skipped * _SKIP_UPDATE_CYCLES
            rows = cut.looked_at * (row_bytes + _ATOM_BYTES)
            part = cut.part * item_bytes
            # A copy of the table is filled, sent and added up.
            compute += 2 * part / _FILL_BYTES_PER_CYCLE if part else fill
            cost = tiles.cost(compute, 3 if part else 2, rows + part, Evidence.DERIVED)
            yield RowsPlan(cost, part + rows)

    return min(plans(), key=_need)


def _need(plan: RowsPlan) -> tuple[int, float]:
    return plan.temporary_bytes, plan.cost.cycles


def _cuts(num_rows: int, width: int, num_indices: int, num_tiles: int) -> Iterator[_Cut]:
    """Yields ways to cut the columns and rows of a table, and its indices.

    Each is cut into a power of two. The rows may also be cut over all remaining tiles.
    """
    for column_cuts in _powers(min(width, num_tiles)):
        for index_cuts in _powers(min(num_indices, num_tiles // column_cuts)):
            limit = min(num_rows, num_tiles // (column_cuts * index_cuts))
            for row_cuts in (*_powers(limit), limit):
                own_width, looked_at = -(-width // column_cuts), -(-num_indices // index_cuts)
                part = -(-num_rows // row_cuts) * own_width if index_cuts > 1 else 0
                yield _Cut(row_cuts, own_width, looked_at, -(-looked_at // row_cuts), part)


def _powers(limit: int) -> Iterator[int]:
    power = 1
    while power <= limit:
        yield power
        power *= 2
