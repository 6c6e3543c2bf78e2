"""What each IPU of a replica holds, how much of it and where: a value.

`holdings.py` makes it; nothing here knows graphs or segments. Sizes are bytes of the elements,
without the copies and gaps that the tiles of an IPU add.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Content(Enum):
    """What a piece of memory is for."""

    WEIGHT = "weight"
    STATE = "optimiser state"
    ACCUMULATOR = "accumulator"
    CONSTANT = "constant"
    INPUT = "input"
    OUTPUT = "output"
    STASH = "stash"
    CHANNEL = "channel"
    WORKSPACE = "workspace"


class Store(Enum):
    """Where a piece of memory is."""

    ON_CHIP = "on chip"
    IO_TILES = "I/O tiles"
    REMOTE = "remote"


@dataclass(frozen=True)
class Holding:
    """One thing that an IPU holds.

    Attributes:
        ipu: index of the virtual IPU; a remote piece belongs to the IPU that uses it.
        name: of the variable, or of the segments that a stash or channel joins.
        item_bytes: size of one copy.
        copies: how many of them are held at most at the same time.
        is_shard: whether the replicas hold the tensor together, each a part of the same length.
    """

    ipu: int
    content: Content
    name: str
    item_bytes: int
    copies: int = 1
    store: Store = Store.ON_CHIP
    is_shard: bool = False

    @property
    def num_bytes(self) -> int:
        """Bytes of all copies."""
        return self.item_bytes * self.copies


@dataclass(frozen=True)
class Movement:
    """What a segment moves between streaming memory and its IPU in one window.

    Attributes:
        segment: its name.
        loaded_bytes: of copies for the IPU.
        stored_bytes: of copies for streaming memory.
    """

    segment: str
    loaded_bytes: int
    stored_bytes: int


@dataclass(frozen=True)
class MemoryPlan:
    """What all IPUs of one replica hold.

    Attributes:
        ipu_ids: the user's number of each virtual IPU.
        movements: of the segments that use streaming memory, in the order in which they run.
    """

    ipu_ids: tuple[int, ...]
    holdings: tuple[Holding, ...]
    movements: tuple[Movement, ...] = ()

    def select(
        self, ipu: int | None = None, content: Content | None = None, store: Store | None = None
    ) -> Iterable[Holding]:
        """Returns the pieces with these properties; `None` stands for any."""
        return (
            holding
            for holding in self.holdings
            if ipu in (None, holding.ipu)
            and content in (None, holding.content)
            and store in (None, holding.store)
        )

    def num_bytes(
        self, ipu: int | None = None, content: Content | None = None, store: Store | None = None
    ) -> int:
        """Returns the bytes of all pieces with these properties; `None` stands for any."""
        return sum(holding.num_bytes for holding in self.select(ipu, content, store))
