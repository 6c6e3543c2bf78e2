"""Which tensors of an update are cut over the replicas (replicated tensor sharding).

Of R replicas each stores and updates 1/R of a tensor, padded with zeros; each use puts the whole
tensor together. A sharded accumulator is reduced in every micro-batch, as on the machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from poptorch_emu.config import CompileConfig
from poptorch_emu.segments.variables import VariableInfo


@dataclass(frozen=True)
class Sharding:
    """What of one weight each replica holds only a part of."""

    has_weight: bool = False
    has_states: bool = False
    has_accumulator: bool = False

    @property
    def is_active(self) -> bool:
        """Whether each replica updates its part."""
        return self.has_weight or self.has_states or self.has_accumulator


def sharding_of(weight: VariableInfo, config: CompileConfig) -> Sharding:
    """Returns how `weight` and what belongs to it is cut.

    The replicas of all processes share out a tensor. Whole stay: everything with one replica, 0-d
    weights, and weights that groups of replicas have values of their own of or that the model
    changes.
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
