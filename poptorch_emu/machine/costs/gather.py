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
        for columns, row_cuts, index_cuts in _cuts(num_rows, width, num_indices, tiles.count):
            own, looked_at = -(-width // columns), -(-num_indices // index_cuts)
            mine = -(-looked_at // row_cuts)
            atoms = -(-own * item_bytes // _ATOM_BYTES)
            compute = _START_CYCLES + mine * (_LOOK_UP_CYCLES + _VECTOR_CYCLES * atoms)
            compute += (looked_at - mine) * _SKIP_LOOK_UP_CYCLES if row_cuts > 1 else 0
            part = -(-num_rows // row_cuts) * own * item_bytes if index_cuts > 1 else 0
            received = result * row_cuts + looked_at * _ATOM_BYTES + part
            steps = 1 if row_cuts == 1 else 2
            reduce = result * row_cuts / _FILL_BYTES_PER_CYCLE if row_cuts > 1 else 0
            cost = tiles.cost(compute + reduce, steps, received, Evidence.DERIVED)
            yield RowsPlan(cost, part + looked_at * (_ATOM_BYTES + own * item_bytes))

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
        for columns, row_cuts, index_cuts in _cuts(num_rows, width, num_indices, tiles.count):
            own, looked_at = -(-width // columns), -(-num_indices // index_cuts)
            mine = -(-looked_at // row_cuts)
            per_index = _UPDATE_CYCLES + _ATOM_CYCLES * -(-own * item_bytes // _ATOM_BYTES)
            if item_bytes == HALF_BYTES and own % 2:
                per_index = _ODD_UPDATE_CYCLES * own
            compute: float = _START_CYCLES + mine * per_index
            compute += (looked_at - mine) * _SKIP_UPDATE_CYCLES if row_cuts > 1 else 0
            rows = looked_at * (own * item_bytes + _ATOM_BYTES)
            part = -(-num_rows // row_cuts) * own * item_bytes if index_cuts > 1 else 0
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


def _cuts(
    num_rows: int, width: int, num_indices: int, num_tiles: int
) -> Iterator[tuple[int, int, int]]:
    """Yields numbers of cuts of the columns, the rows and the indices.

    They are powers of two, and of the rows also all tiles that are left.
    """
    for columns in _powers(min(width, num_tiles)):
        for index_cuts in _powers(min(num_indices, num_tiles // columns)):
            limit = min(num_rows, num_tiles // (columns * index_cuts))
            for row_cuts in _powers(limit):
                yield columns, row_cuts, index_cuts
            yield columns, limit, index_cuts


def _powers(limit: int) -> Iterator[int]:
    power = 1
    while power <= limit:
        yield power
        power *= 2
