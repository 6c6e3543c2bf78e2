"""Replicated tensor sharding: the tensors of an update that are cut over the replicas.

Each of R replicas stores and updates 1/R of a tensor, padded with zeros. Each use gathers the whole
tensor. A sharded accumulator is reduced in every micro-batch, as on the machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from poptorch_emu.config import CompileConfig
from poptorch_emu.segments.variables import VariableInfo


@dataclass(frozen=True)
class Sharding:
    """The tensors of one weight that are sharded, so that each replica holds only a part."""

    has_weight: bool = False
    has_states: bool = False
    has_accumulator: bool = False

    @property
    def is_active(self) -> bool:
        """Whether each replica updates its part."""
        return self.has_weight or self.has_states or self.has_accumulator


def sharding_of(weight: VariableInfo, config: CompileConfig) -> Sharding:
    """Returns which tensors of `weight` are cut.

    The replicas of all processes share a tensor. A tensor stays whole if there is one replica, if
    it has no dimension, if replica groups have different values of it, or if the model changes it.
    """
    is_whole = weight.is_per_replica or weight.group_of_replica or not weight.shape
    if config.num_sharers == 1 or is_whole:
        return Sharding()
    thresholds = config.sharding

    def is_cut(threshold: int | None) -> bool:
        return threshold is not None and weight.num_elements >= threshold

    return Sharding(
        is_cut(thresholds.weight), is_cut(thresholds.optimizer), is_cut(thresholds.accumulator)
    )
