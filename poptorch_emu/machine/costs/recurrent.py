"""The steps of a recurrent layer, beside their products.

Source: derived from PopLibs' recurrent layers: a program for each gate, and five that combine them.
"""

from __future__ import annotations

from poptorch_emu.machine.costs.cost import Cost, Evidence
from poptorch_emu.machine.costs.elementwise import elementwise
from poptorch_emu.machine.costs.tiles import Tiles

_COMBINING_PROGRAMS = 5


def step(num_states: int, num_gates: int, item_bytes: int, tiles: Tiles) -> Cost:
    """Returns the cost of one step without its products.

    Args:
        num_states: rows times width.
        num_gates: 4 of an LSTM, 3 of a GRU, 1 of a plain layer, which only adds and bends.
        item_bytes: of an element.
        tiles: that share the work.
    """
    gate = elementwise("sigmoid", num_states, item_bytes, tiles)
    combining = elementwise("add", num_states, item_bytes, tiles)
    count = _COMBINING_PROGRAMS if num_gates > 1 else 1
    cost = gate.times(num_gates) + combining.times(count)
    return cost + Cost(evidence=Evidence.ASSUMED)
