"""The parts of a step: exclusive categories of the time of an IPU, which add up to the step.

Every table, insight and verdict about time reads these parts. They form a tree: a step consists of
groups, and a group consists of parts.
"""

from __future__ import annotations

from enum import Enum


class Group(Enum):
    """Group of parts, the first level of the tree."""

    WORK = "work on operations"
    TRANSFER = "transfers and updates"
    HOST = "waiting for the host"
    WAIT = "waiting for other IPUs"


class Part(Enum):
    """A category of time, with its word in reports, its group, and its content.

    Each moment of an IPU belongs to exactly one part.
    """

    COMPUTE = "compute", Group.WORK, "running the code of operations, without the next four parts"
    EXCHANGE = "exchange", Group.WORK, "data between the tiles of an IPU, stashes included"
    SYNC = "sync", Group.WORK, "starting programs and waiting for all tiles"
    RECOMPUTE = "recompute", Group.WORK, "all time of operations that run again for backward"
    PROPORTION = (
        "low proportion",
        Group.WORK,
        "additional time of operations whose available memory proportion is below 0.6",
    )
    LINK = "link", Group.TRANSFER, "data from other IPUs of the replica"
    STREAMING = "streaming", Group.TRANSFER, "data from and to streaming memory, also of updates"
    ALL_REDUCE = "all-reduce", Group.TRANSFER, "sums and shares exchanged by replicas"
    UPDATE = "update", Group.TRANSFER, "the optimiser's rule"
    INPUT = "host input", Group.HOST, "transfers of inputs, and synchronising with the host"
    OUTPUT = "host output", Group.HOST, "transfers of results, and synchronising with the host"
    DATA = "host data", Group.HOST, "waiting until the program on the host has the next inputs"
    CALL = "calls", Group.HOST, "starting a call on the host"
    IMBALANCE = (
        "imbalance",
        Group.WAIT,
        "waiting for a slower IPU or for the end of a pipeline cycle, while the pipeline is full",
    )
    RAMP = "ramp", Group.WAIT, "waiting while the pipeline fills and empties, once for each window"
    TURNS = "turns", Group.WAIT, "waiting because only one IPU works at a time"
    UPDATE_TURNS = "update turns", Group.WAIT, "waiting while other IPUs update their weights"

    def __init__(self, word: str, group: Group, meaning: str) -> None:
        """Names the three values."""
        self.word, self.group, self.meaning = word, group, meaning
