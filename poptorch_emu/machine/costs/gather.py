"""Rows that are looked up in a table, or added to it: embeddings, gathers and scatters.

Each tile has some rows and some columns of the table; it looks at all indices and takes those of
its rows. Of the ways to cut the table the cheapest is taken. Source: PopLibs' `multiSlice`,
`multiUpdateAdd` and their cycle estimates.
"""

from __future__ import annotations

from collections.abc import Iterator

from poptorch_emu.machine.costs.cost import Cost, Evidence
from poptorch_emu.machine.costs.tiles import HALF_BYTES, Tiles

_START_CYCLES = 6 * 30
_LOOK_UP_CYCLES, _UPDATE_CYCLES = 19, 12
_SKIP_LOOK_UP_CYCLES, _SKIP_UPDATE_CYCLES = 8, 5
_VECTOR_CYCLES, _ATOM_CYCLES, _ATOM_BYTES = 2, 3, 4
_FILL_BYTES_PER_CYCLE = 8
_ODD_UPDATE_CYCLES = 20  # Of an element, where a part of a row is no whole number of atoms.


def look_up(num_rows: int, width: int, num_indices: int, item_bytes: int, tiles: Tiles) -> Cost:
    """Returns the cost of taking `num_indices` rows of a table of `num_rows`."""

    def costs() -> Iterator[Cost]:
        for columns, row_cuts in _cuts(num_rows, width, tiles.count):
            own = -(-width // columns)
            mine = -(-num_indices // row_cuts)
            atoms = -(-own * item_bytes // _ATOM_BYTES)
            compute = _START_CYCLES + mine * (_LOOK_UP_CYCLES + _VECTOR_CYCLES * atoms)
            compute += (num_indices - mine) * _SKIP_LOOK_UP_CYCLES if row_cuts > 1 else 0
            result = tiles.bytes(num_indices * width, item_bytes)
            received = result * row_cuts + num_indices * _ATOM_BYTES
            steps = 1 if row_cuts == 1 else 2
            reduce = result * row_cuts / _FILL_BYTES_PER_CYCLE if row_cuts > 1 else 0
            yield tiles.cost(compute + reduce, steps, received, Evidence.DERIVED)

    return min(costs(), key=lambda cost: cost.cycles)


def add_rows(num_rows: int, width: int, num_indices: int, item_bytes: int, tiles: Tiles) -> Cost:
    """Returns the cost of adding `num_indices` rows to a table that is filled with zeros first."""

    def costs() -> Iterator[Cost]:
        for columns, row_cuts in _cuts(num_rows, width, tiles.count):
            own = -(-width // columns)
            mine = -(-num_indices // row_cuts)
            per_index = _UPDATE_CYCLES + _ATOM_CYCLES * -(-own * item_bytes // _ATOM_BYTES)
            if item_bytes == HALF_BYTES and own % 2:
                per_index = _ODD_UPDATE_CYCLES * own
            compute = _START_CYCLES + mine * per_index
            compute += (num_indices - mine) * _SKIP_UPDATE_CYCLES if row_cuts > 1 else 0
            received = num_indices * (own * item_bytes + _ATOM_BYTES)
            fill = tiles.bytes(num_rows * width, item_bytes) / _FILL_BYTES_PER_CYCLE
            yield tiles.cost(compute + fill, 2, received, Evidence.DERIVED)

    return min(costs(), key=lambda cost: cost.cycles)


def _cuts(num_rows: int, width: int, num_tiles: int) -> Iterator[tuple[int, int]]:
    """Yields numbers of cuts of the columns and of the rows: powers of two, and all tiles."""
    columns = 1
    while columns <= min(width, num_tiles):
        limit = min(num_rows, num_tiles // columns)
        row_cuts = 1
        while row_cuts <= limit:
            yield columns, row_cuts
            row_cuts *= 2
        yield columns, limit
        columns *= 2
