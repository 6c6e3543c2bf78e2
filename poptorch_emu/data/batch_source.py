"""What an asynchronous accessor asks of what it iterates, and how it asks any iterable.

A loader that can do more than be iterated registers its own answer with `batch_source`; neither
the accessor nor the worker knows loaders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial, singledispatch
from typing import Any, Protocol

from poptorch_emu.data.slot_collate import NextSlot, SlotCollate


class BatchSource(Protocol):
    """Travels to the worker, which iterates it; the accessor keeps no more than its counter."""

    def __iter__(self) -> Iterator[Any]:
        """Starts an epoch."""

    @property
    def drops_remainder(self) -> bool:
        """Whether rows are dropped that do not fill the last element of an epoch."""

    def collate_into(self, next_slot: NextSlot) -> SlotCollate | None:
        """Has batches made in memory that is given, where nobody but the worker sees them."""

    def counter(self, rebatched_rows: int | None) -> Callable[[], int]:
        """Returns what counts the elements of one epoch, cut to so many rows.

        It raises `TypeError` where that is not known.
        """


class IterableSource:
    """Any iterable; its public attributes `rebatched_drop_last` and `batch_size` are heeded."""

    def __init__(self, dataset: Iterable[Any]) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        """Iterates the dataset."""
        return iter(self._dataset)

    @property
    def drops_remainder(self) -> bool:
        """What the dataset says; rows are dropped unless it says no."""
        return getattr(self._dataset, "rebatched_drop_last", True) is not False

    def collate_into(self, next_slot: NextSlot) -> None:
        """Does nothing: how the dataset makes its elements is its own affair."""

    def counter(self, rebatched_rows: int | None) -> Callable[[], int]:
        """Returns what counts the dataset's elements, or their rows."""
        return partial(num_elements, self._dataset, rebatched_rows, self.drops_remainder)


@singledispatch
def batch_source(dataset: Any, rebatched_rows: int | None) -> BatchSource:
    """Returns how an accessor iterates `dataset`; loaders register their own answer.

    Args:
        dataset: what the user gives the accessor.
        rebatched_rows: the rows of each element, where they are joined and cut anew.

    Raises:
        Error: no accessor can be put on top of it.
        AssertionError: not without `rebatched_rows`.
    """
    return IterableSource(dataset)


def num_elements(dataset: Any, rebatched_rows: int | None, drops_remainder: bool) -> int:
    """Returns how many elements an epoch of `dataset` has, cut to `rebatched_rows`.

    Raises:
        TypeError: the dataset has no length, or its elements an unknown number of rows.
    """
    if rebatched_rows is None:
        return len(dataset)
    batch_size = getattr(dataset, "batch_size", None)
    if batch_size is None:
        raise TypeError(
            f"How many elements of {rebatched_rows} rows there are is not known: {type(dataset)} "
            "has no batch_size."
        )
    num_rows = len(dataset) * int(batch_size)
    return num_rows // rebatched_rows if drops_remainder else -(-num_rows // rebatched_rows)
