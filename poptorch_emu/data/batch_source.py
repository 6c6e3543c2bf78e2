"""The interface of datasets for an asynchronous accessor, and its form for any iterable.

A loader that supports more than iteration registers its own form with `batch_source`. So neither
the accessor nor the worker has to know loaders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial, singledispatch
from typing import Any, Protocol

from poptorch_emu.data.slot_collate import NextSlot, SlotCollate


class BatchSource(Protocol):
    """A dataset that is sent to the worker, which iterates it. The accessor keeps its counter."""

    def __iter__(self) -> Iterator[Any]:
        """Starts an epoch."""

    @property
    def drops_remainder(self) -> bool:
        """Whether rows are dropped that do not fill the last element of an epoch."""

    def collate_into(self, next_slot: NextSlot) -> SlotCollate | None:
        """Lets the source build batches in the next slot, if nobody else sees them."""

    def counter(self, rebatched_rows: int | None) -> Callable[[], int]:
        """Returns a function that counts the elements of one epoch.

        The function raises `TypeError` if the number is not known.

        Args:
            rebatched_rows: rows of each element, if elements are joined and cut again.
        """


class IterableSource:
    """Any iterable; it may have attributes `rebatched_drop_last` and `batch_size`."""

    def __init__(self, dataset: Iterable[Any]) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        """Iterates the dataset."""
        return iter(self._dataset)

    @property
    def drops_remainder(self) -> bool:
        """The dataset's `rebatched_drop_last`; by default true."""
        return getattr(self._dataset, "rebatched_drop_last", True) is not False

    def collate_into(self, next_slot: NextSlot) -> None:
        """Does nothing, because an iterable builds its elements itself."""

    def counter(self, rebatched_rows: int | None) -> Callable[[], int]:
        """Returns a function that counts the elements."""
        return partial(num_elements, self._dataset, rebatched_rows, self.drops_remainder)


@singledispatch
def batch_source(dataset: Any, rebatched_rows: int | None) -> BatchSource:
    """Returns the source of a dataset; loaders register their own form.

    Args:
        dataset: dataset that the user passes to the accessor.
        rebatched_rows: rows of each element, if elements are joined and cut again.

    Raises:
        Error: the dataset is already asynchronous.
        AssertionError: the dataset needs `rebatched_rows`.
    """
    return IterableSource(dataset)


def num_elements(dataset: Any, rebatched_rows: int | None, drops_remainder: bool) -> int:
    """Returns the number of elements in an epoch of `dataset`.

    Raises:
        TypeError: the dataset has no length, or the number of rows of its elements is unknown.
    """
    if rebatched_rows is None:
        return len(dataset)
    batch_size = getattr(dataset, "batch_size", None)
    if batch_size is None:
        raise TypeError(
            f"The number of elements of {rebatched_rows} rows is not known, because "
            f"{type(dataset)} has no batch_size."
        )
    num_rows = len(dataset) * int(batch_size)
    return num_rows // rebatched_rows if drops_remainder else -(-num_rows // rebatched_rows)
