"""Assignments of stages to IPUs with several stages on each."""

from __future__ import annotations


def looped(num_ipus: int, stages_per_ipu: int) -> tuple[int, ...]:
    """Returns the IPU of each stage in the order 0, 1, 2, ..., starting again from 0."""
    return tuple(range(num_ipus)) * stages_per_ipu


def v_shaped(num_ipus: int, stages_per_ipu: int) -> tuple[int, ...]:
    """Returns the IPU of each stage in the order 0, 1, ... to the last IPU and back again."""
    down = tuple(range(num_ipus))
    return tuple(
        ipu for turn in range(stages_per_ipu) for ipu in (down[::-1] if turn % 2 else down)
    )
