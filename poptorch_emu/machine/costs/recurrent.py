"""The steps of a recurrent layer, beside their products.

Source: derived from PopLibs' recurrent layers; the loop's own cycles are the least certain.
"""

from __future__ import annotations

from poptorch_emu.machine.costs.cost import Cost, Evidence
from poptorch_emu.machine.costs.elementwise import elementwise
from poptorch_emu.machine.costs.tiles import Tiles

_STEP_PROGRAMS = 8
_PROGRAM_CYCLES = 300
_ADDITIONS = 5


def step(num_states: int, num_gates: int, item_bytes: int, tiles: Tiles) -> Cost:
    """Returns the cost of one step without its products: gates, state, and the loop.

    Args:
        num_states: rows times width.
        num_gates: 4 of an LSTM, 3 of a GRU, 1 of a plain layer.
        item_bytes: of an element.
        tiles: that share the work.
    """
    gates = elementwise("sigmoid", num_gates * num_states, item_bytes, tiles)
    additions = elementwise("add", _ADDITIONS * num_states, item_bytes, tiles)
    sync_cycles = tiles.numbers.step_cycles + _STEP_PROGRAMS * _PROGRAM_CYCLES
    return Cost(
        gates.compute_cycles + additions.compute_cycles,
        0.0,
        sync_cycles,
        _STEP_PROGRAMS,
        Evidence.ASSUMED,
    )
