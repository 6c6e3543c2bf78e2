"""The cost of an operation on its IPU, as a value that can be added up and carries its evidence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import total_ordering


@total_ordering
class Evidence(Enum):
    """The kind of source of a number, from the strongest to the weakest."""

    PUBLISHED = "published"
    MEASURED = "measured"
    SIMULATED = "simulated"  # By the vendor's own model of the machine.
    SOURCE = "source code"
    INDEPENDENT = "independent code"
    DERIVED = "derived"
    FIGURE = "read off a figure"
    REMEMBERED = "remembered"
    ASSUMED = "assumed"

    def __lt__(self, other: Evidence) -> bool:
        """Whether this is stronger than `other`."""
        order = list(Evidence)
        return order.index(self) < order.index(other)


@dataclass(frozen=True)
class Cost:
    """Cycles of the fullest tile. Costs add up, because the phases of an IPU follow each other.

    Attributes:
        compute_cycles: cycles that vertices run.
        exchange_cycles: cycles that the tile spends to receive data from other tiles.
        sync_cycles: cycles to start programs and to wait for all tiles.
        steps: number of programs that are started.
        evidence: evidence of the weakest number in this cost.
    """

    compute_cycles: float = 0.0
    exchange_cycles: float = 0.0
    sync_cycles: float = 0.0
    steps: int = 0
    evidence: Evidence = Evidence.PUBLISHED

    @property
    def cycles(self) -> float:
        """Sum of compute, exchange and sync."""
        return self.compute_cycles + self.exchange_cycles + self.sync_cycles

    def __add__(self, other: Cost) -> Cost:
        """Returns the cost of both, one after the other."""
        return Cost(
            self.compute_cycles + other.compute_cycles,
            self.exchange_cycles + other.exchange_cycles,
            self.sync_cycles + other.sync_cycles,
            self.steps + other.steps,
            max(self.evidence, other.evidence),
        )

    def times(self, count: int) -> Cost:
        """Returns the cost of `count` repetitions."""
        return Cost(
            self.compute_cycles * count,
            self.exchange_cycles * count,
            self.sync_cycles * count,
            self.steps * count,
            self.evidence,
        )
