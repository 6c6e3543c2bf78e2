"""LAMB for weights that are sharded over the replicas.

A step needs the norms of the whole weight and of its direction. So each replica computes its shard
of the direction and the squares of both shards, all replicas add up the squares, and each replica
updates its shard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from poptorch_emu.segments.segment import Register
from poptorch_emu.update.formulas.optimizer_config import OptimizerConfig
from poptorch_emu.update.parts.update_parts import Binding, Gradient, Part
from poptorch_emu.update.recorded import (
    DIRECTION,
    SQUARES,
    record_lamb_direction,
    record_lamb_step,
)

# Each graph is recorded once for a type and a group of weights, because a model has few of them.
_known_direction = lru_cache(maxsize=64)(record_lamb_direction)
_known_step = lru_cache(maxsize=64)(record_lamb_step)


def add_lamb(
    optimizer: OptimizerConfig,
    gradient_scale: float,
    gradients: Sequence[Gradient],
    arrived: Mapping[str, Register],
    directions: Part,
    steps: Part,
) -> list[str]:
    """Adds both halves of LAMB to two parts; returns the accumulators of the squares.

    Args:
        optimizer: optimiser with LAMB's rule.
        gradient_scale: factor for accumulated gradients, applied first.
        gradients: gradients of the weights.
        arrived: registers of `directions` that links fill, by name.
        directions: part that receives the first half.
        steps: part that receives the second half, and a link with the directions.
    """
    squares = {gradient.name: f"squares of {gradient.name}" for gradient in gradients}
    made = {}
    for gradient in gradients:
        key = (gradient.group, gradient.weight.dtype)
        template = _known_direction(optimizer, *key, gradient_scale)
        binding = Binding(gradient, arrived, {SQUARES: squares[gradient.name]})
        made[gradient.name] = binding.inline(template, directions)[DIRECTION]
    received = steps.receive(directions, made)
    for gradient in gradients:
        template = _known_step(optimizer, gradient.group, gradient.weight.dtype)
        direction = {DIRECTION: received[gradient.name]}
        Binding(gradient, direction, {SQUARES: squares[gradient.name]}).inline(template, steps)
    return list(squares.values())
