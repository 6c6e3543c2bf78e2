"""Costs of softmax, its logarithm and loss, and norms, as short sequences of programs.

Source: PopLibs has the sequences (`NonLinearity.cpp`, `Norms.cpp`); their cycles are the sums over
their elementwise and reduction programs.
"""

from __future__ import annotations

from enum import Enum

from poptorch_emu.machine.costs.cost import Cost, Evidence
from poptorch_emu.machine.costs.tiles import HALF_BYTES, Tiles


class Sequence(Enum):
    """Number of programs, cycles per half element, cycles per float element.

    Reductions over the same elements share a program. In forward these are the mean and the mean
    of squares. In backward these are the gradients of scale and shift, and both reductions for the
    gradient of the input.
    """

    SOFTMAX = (6, 2.5, 6.3)
    SOFTMAX_GRAD = (4, 2.5, 4.7)
    LOG_SOFTMAX = (6, 3.5, 7.3)
    NORM = (6, 3.5, 7.0)
    NORM_GRAD = (7, 6.0, 11.0)
    NORM_OF_INFERENCE = (2, 1.5, 3.0)


def sequence(kind: Sequence, num_elements: int, item_bytes: int, tiles: Tiles) -> Cost:
    """Returns the cost of a sequence on a tensor."""
    steps, half, full = kind.value
    rate = half if item_bytes <= HALF_BYTES else full
    own = tiles.elements(num_elements, item_bytes)
    return tiles.cost(own * rate, steps, 0.0, Evidence.DERIVED)
