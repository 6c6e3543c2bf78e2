"""The memory that the model of the machine predicts, beside published figures.

Nothing is run: each model is compiled. Sources and configurations are in `docs/fidelity.md`. With
`--details` each row is followed by its table; with `--time` it is speeds that are predicted.
"""

from __future__ import annotations

import argparse
import os

from fidelity_rows import ROWS, Row
from fidelity_time import print_times

from poptorch_emu import emulator
from poptorch_emu.machine.ipu import KIB
from poptorch_emu.machine.tile_memory import TileMemory

os.environ["POPTORCH_EMU_OOM"] = "off"

VERDICTS = {"yes": "fits", "close": "close", "no": "does not fit"}


def predicted(row: Row) -> TileMemory:
    """Returns what the tiles of a row's model would hold."""
    model, inputs = row.build()
    model.compile(*inputs)
    tiles = emulator.tile_memory(model)
    model.destroy()
    return tiles


def total_bytes(row: Row, tiles: TileMemory) -> int:
    """Returns the memory of all tiles, with what the row's published total counts."""
    per_tile = sum(
        tiles.mean_bytes(ipu) - (0 if row.counts_vertex_code else ipu.code.vertex_code)
        for ipu in tiles.ipus
    )
    return per_tile * tiles.num_compute_tiles


def always_live_bytes(tiles: TileMemory) -> int:
    """Returns what is held for the whole programs, and the programs."""
    programs = tiles.num_compute_tiles * sum(ipu.code.total for ipu in tiles.ipus)
    return programs + sum(num_bytes for ipu in tiles.ipus for _, num_bytes in ipu.always_live)


def beside(found: float, published: int | None, unit: float) -> str:
    """Returns a figure, with its ratio to the published one where there is one."""
    text = f"{found:,.1f}"
    return text if published is None else f"{text} ({found * unit / published:.2f})"


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--details", action="store_true")
    parser.add_argument("--time", action="store_true", help="predict speeds")
    parser.add_argument("rows", nargs="*", help="beginnings of names; by default all")
    arguments = parser.parse_args()
    if arguments.time:
        print_times(arguments.rows, arguments.details)
        return
    print("| row | model | published | predicted | total MB | fullest tile KiB | always live MB |")
    print("|---|---|---|---|---:|---:|---:|")
    for row in ROWS:
        if arguments.rows and not row.name.startswith(tuple(arguments.rows)):
            continue
        tiles = predicted(row)
        cells = [
            row.name,
            row.what,
            {True: "fits", False: "does not fit", None: ""}[row.fits],
            VERDICTS[max(map(tiles.verdict, tiles.ipus), key=list(VERDICTS).index)],
            beside(total_bytes(row, tiles) / 1e6, row.total_bytes, 1e6),
            beside(max(map(tiles.largest_bytes, tiles.ipus)) / KIB, row.largest_tile_bytes, KIB),
            beside(always_live_bytes(tiles) / 1e6, row.always_live_bytes, 1e6),
        ]
        print(f"| {' | '.join(cells)} |", flush=True)
        if arguments.details:
            print(f"\n{tiles}\n", flush=True)


if __name__ == "__main__":
    main()
