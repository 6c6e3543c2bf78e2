"""Costs of one step of a recurrent layer, without its products.

Source: derived from PopLibs' recurrent layers: a program for each gate, and five that combine them.
"""

from __future__ import annotations

from poptorch_emu.machine.costs.cost import Cost, Evidence
from poptorch_emu.machine.costs.elementwise import elementwise
from poptorch_emu.machine.costs.tiles import Tiles

_COMBINING_PROGRAMS = 5


def num_combining(num_gates: int) -> int:
    """Returns the number of programs that combine the gates of one step."""
    return _COMBINING_PROGRAMS if num_gates > 1 else 1


def step(num_states: int, num_gates: int, item_bytes: int, tiles: Tiles) -> Cost:
    """Returns the cost of one step without its products.

    Args:
        num_states: elements of the hidden state, rows times width.
        num_gates: 4 for an LSTM, 3 for a GRU, 1 for a plain layer (one sum and one activation).
        item_bytes: size of an element.
        tiles: tiles that share the work.
    """
    gate = elementwise("sigmoid", num_states, item_bytes, tiles)
    combining = elementwise("add", num_states, item_bytes, tiles)
    cost = gate.times(num_gates) + combining.times(num_combining(num_gates))
    return cost + Cost(evidence=Evidence.ASSUMED)
