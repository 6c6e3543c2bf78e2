"""Enumerations for settings of `IPUConfig`."""

from __future__ import annotations

from enum import Enum


class DeviceConnectionType(Enum):
    """When a process attaches to its IPUs (accepted; the last two cannot run)."""

    ALWAYS = 0
    ON_DEMAND = 1
    PRE_COMPILE = 2
    NEVER = 3


class StochasticRoundingBehaviour(Enum):
    """Whether float16 results are rounded stochastically (exact; ON is on for all replicas)."""

    OFF = 0
    ON = 1
    REPLICA_IDENTICAL_ONLY = 2

    @classmethod
    def from_bool(cls, value: bool) -> StochasticRoundingBehaviour:
        """Returns `ON` or `OFF`."""
        return cls.ON if value else cls.OFF


class SchedulingAlgorithm(Enum):
    """The backend's algorithm to order operations (accepted)."""

    CHOOSE_BEST = 0
    CLUSTERING = 1
    POST_ORDER = 2
    LOOK_AHEAD = 3
    SHORTEST_PATH = 4


class SelectionOrder(Enum):
    """The order of neighbouring IPUs in a device (accepted)."""

    AUTO = 0
    ZIGZAG = 1
    SNAKE = 2
    HOOF = 3


class MergeRemoteBuffersBehaviour(Enum):
    """Whether buffers in streaming memory are merged (accepted)."""

    NO_MERGING = 0
    MERGE = 1
    IF_BENEFICIAL = 2
