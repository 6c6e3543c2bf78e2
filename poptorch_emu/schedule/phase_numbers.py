"""The numbers of the phases of phased execution: forward up, then backward down.

At the numbers in between, tensors move between the chip and streaming memory.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PhaseNumbers:
    """The numbers of the user's phases.

    Attributes:
        forward: number of the forward of each phase.
        backward: number of the backward of each phase; empty in inference.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]


def number_phases(num_phases: int, spacing: int, gap: int, is_training: bool) -> PhaseNumbers:
    """Returns the numbers of `num_phases` phases.

    Args:
        num_phases: number of phases that the user named.
        spacing: distance from one phase to the next.
        gap: distance from the last forward to the backward of the same phase; with 0 both share a
            number.
        is_training: whether the phases have a backward.
    """
    forward = tuple(spacing * phase for phase in range(num_phases))
    first = forward[-1] + gap
    backward = tuple(first + spacing * (num_phases - 1 - phase) for phase in range(num_phases))
    return PhaseNumbers(forward, backward if is_training else ())
