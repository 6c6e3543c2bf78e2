"""Which IPU has which stages, where each has several."""

from __future__ import annotations


def looped(num_ipus: int, stages_per_ipu: int) -> tuple[int, ...]:
    """Returns the IPU of each stage: 0, 1, 2, ... and again from 0."""
    return tuple(range(num_ipus)) * stages_per_ipu


def v_shaped(num_ipus: int, stages_per_ipu: int) -> tuple[int, ...]:
    """Returns the IPU of each stage: up to the last IPU, and down again from there."""
    down = tuple(range(num_ipus))
    return tuple(
        ipu for turn in range(stages_per_ipu) for ipu in (down[::-1] if turn % 2 else down)
    )
