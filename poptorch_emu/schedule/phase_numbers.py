"""The numbers of the phases of phased execution: forward up, then backward down.

Numbers without a phase are where tensors travel between the chip and streaming memory.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PhaseNumbers:
    """For each phase of the user, the number of its forward and of its backward.

    Attributes:
        backward: empty in inference.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]


def number_phases(num_phases: int, spacing: int, gap: int, is_training: bool) -> PhaseNumbers:
    """Returns the numbers of `num_phases` phases.

    Args:
        num_phases: how many phases the user named.
        spacing: from one phase to the next.
        gap: from the last forward to the first backward, which is that of the same phase; with 0
            both share a number.
        is_training: whether there is a backward.
    """
    forward = tuple(spacing * phase for phase in range(num_phases))
    first = forward[-1] + gap
    backward = tuple(first + spacing * (num_phases - 1 - phase) for phase in range(num_phases))
    return PhaseNumbers(forward, backward if is_training else ())
