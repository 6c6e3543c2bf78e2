"""The memory plan of a replica as a value: each piece of memory with its size and place.

`holdings.py` computes the plan; this file knows no graphs or segments. Sizes are bytes of the
elements, without the copies and gaps that the tiles of an IPU add.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from poptorch_emu.printed.records import Record


class Content(Enum):
    """Purpose of a piece of memory."""

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
    """Place of a piece of memory."""

    ON_CHIP = "on chip"
    IO_TILES = "I/O tiles"
    REMOTE = "remote"


@dataclass(frozen=True)
class Holding(Record):
    """One piece of memory that an IPU holds.

    Attributes:
        ipu: index of the virtual IPU. A piece in streaming memory belongs to the IPU that uses it.
        name: name of the variable, or of the two segments that a stash or channel connects.
        item_bytes: size of one copy, in bytes.
        copies: largest number of copies that are held at the same time.
        is_shard: whether each replica holds a part of the tensor, all of the same length.
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
class Movement(Record):
    """Bytes that a segment reads from and writes to streaming memory in one window.

    Attributes:
        segment: name of the segment.
        loaded_bytes: bytes read from streaming memory.
        stored_bytes: bytes written to streaming memory.
    """

    segment: str
    loaded_bytes: int
    stored_bytes: int


@dataclass(frozen=True)
class MemoryPlan:
    """The memory of all IPUs of one replica.

    Attributes:
        ipu_ids: the user's number of each virtual IPU.
        movements: traffic of the segments that use streaming memory, in running order.
    """

    ipu_ids: tuple[int, ...]
    holdings: tuple[Holding, ...]
    movements: tuple[Movement, ...] = ()

    def select(
        self, ipu: int | None = None, content: Content | None = None, store: Store | None = None
    ) -> Iterable[Holding]:
        """Returns the pieces with these properties; None allows any value."""
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
        """Returns the bytes of all pieces with these properties; None allows any value."""
        return sum(holding.num_bytes for holding in self.select(ipu, content, store))
