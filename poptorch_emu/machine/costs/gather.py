"""Rows that are looked up in a table, or added to it: embeddings, gathers and scatters.

Each tile has some rows and some columns of the table; it looks at its part of the indices and takes
those of its rows. Of the ways to cut table and indices the cheapest is taken. Where the indices are
cut, each part of the table is sent to all tiles that look into it. Source: PopLibs' `multiSlice`,
`multiUpdateAdd`, their planner and their cycle estimates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from poptorch_emu.machine.costs.cost import Cost, Evidence
from poptorch_emu.machine.costs.product import DEFAULT_PROPORTION
from poptorch_emu.machine.costs.tiles import HALF_BYTES, Tiles

_START_CYCLES = 6 * 30
_LOOK_UP_CYCLES, _UPDATE_CYCLES = 19, 12
_SKIP_LOOK_UP_CYCLES, _SKIP_UPDATE_CYCLES = 8, 5
_VECTOR_CYCLES, _ATOM_CYCLES, _ATOM_BYTES = 2, 3, 4
_FILL_BYTES_PER_CYCLE = 8
_ODD_UPDATE_CYCLES = 20  # Of an element, where a part of a row is no whole number of atoms.


@dataclass(frozen=True)
class RowsPlan:
    """How rows are looked up or added.

    Attributes:
        temporary_bytes: of the fullest tile: the part of a table that it was sent or fills beside
            the table, its indices, and the rows that it takes or gets.
    """

    cost: Cost
    temporary_bytes: int


@dataclass(frozen=True)
class _Cut:
    """What the fullest tile has of a table and its indices.

    Attributes:
        row_cuts: into how many parts the rows of the table are cut.
        width: elements that it has of a row.
        looked_at: indices that it looks at.
        own: those of them whose rows it has, if all parts have as many.
        part: elements of the table that it is sent, or fills beside the table; none where the
            indices are not cut.
    """

    row_cuts: int
    width: int
    looked_at: int
    own: int
    part: int

    @property
    def skipped(self) -> int:
        """Indices of other parts' rows."""
        return self.looked_at - self.own


def look_up(
    num_rows: int,
    width: int,
    num_indices: int,
    item_bytes: int,
    tiles: Tiles,
    proportion: float = DEFAULT_PROPORTION,
) -> RowsPlan:
    """Returns the plan of taking `num_indices` rows of a table of `num_rows`.

    Args:
        num_rows: of the table.
        width: elements of a row.
        num_indices: rows that are taken.
        item_bytes: of an element.
        tiles: that share the work.
        proportion: part of a tile's memory that it may take, if a plan does with so little.
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

    return _best(plans(), proportion * tiles.chip.tile_bytes)


def add_rows(
    num_rows: int,
    width: int,
    num_indices: int,
    item_bytes: int,
    tiles: Tiles,
    proportion: float = DEFAULT_PROPORTION,
) -> RowsPlan:
    """Returns the plan of adding rows to a table that is filled with zeros first.

    Where the indices are cut, each part of them fills a table of its own, and the tables are added.
    Arguments are those of `look_up`.
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
            # Such a table is filled, sent and added up.
            compute += 2 * part / _FILL_BYTES_PER_CYCLE if part else fill
            cost = tiles.cost(compute, 3 if part else 2, rows + part, Evidence.DERIVED)
            yield RowsPlan(cost, part + rows)

    return _best(plans(), proportion * tiles.chip.tile_bytes)


def _best(plans: Iterator[RowsPlan], bound: float) -> RowsPlan:
    """Returns the fastest plan within a bound of memory, or else the one that takes least."""
    found = list(plans)
    within = [plan for plan in found if plan.temporary_bytes <= bound]
    if within:
        return min(within, key=lambda plan: plan.cost.cycles)
    return min(found, key=lambda plan: plan.temporary_bytes)


def _cuts(num_rows: int, width: int, num_indices: int, num_tiles: int) -> Iterator[_Cut]:
    """Yields ways to cut the columns and the rows of a table, and its indices.

    All are cut into powers of two, and the rows also over all tiles that are left.
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
