"""Costs of an optimiser's rule on one weight, and of accumulating a gradient.

Source: cycles per element are derived from PopLibs' elementwise vertices. A weight takes about ten
programs. They start faster than other programs, because no exchange separates them (derived).
"""

from __future__ import annotations

from enum import Enum

from poptorch_emu.machine.costs.cost import Cost, Evidence
from poptorch_emu.machine.costs.tiles import HALF_BYTES, Tiles

_PROGRAM_CYCLES = 300


class Rule(Enum):
    """Number of programs, cycles per element of a half weight, and of a float weight."""

    SGD = (1, 2.5, 1.5)
    MOMENTUM = (3, 5.0, 4.5)
    RMSPROP = (7, 11.0, 12.0)
    ADAM = (10, 15.0, 16.0)
    LAMB = (12, 18.0, 19.0)


def rule(kind: Rule, num_elements: int, weight_bytes: int, tiles: Tiles) -> Cost:
    """Returns the cost of updating one weight, or one replica's shard of it."""
    steps, half, full = kind.value
    own = tiles.elements(num_elements, weight_bytes)
    rate = half if weight_bytes <= HALF_BYTES else full
    return Cost(own * rate, 0.0, steps * _PROGRAM_CYCLES, steps, Evidence.DERIVED)


def accumulate(num_elements: int, gradient_bytes: int, sum_bytes: int, tiles: Tiles) -> Cost:
    """Returns the cost of adding a gradient to its accumulator."""
    own = tiles.elements(num_elements, sum_bytes)
    if sum_bytes <= HALF_BYTES:
        rate = 0.75
    else:
        rate = 2.0 if gradient_bytes <= HALF_BYTES else 1.5
    return Cost(own * rate, 0.0, _PROGRAM_CYCLES, 1, Evidence.DERIVED)
