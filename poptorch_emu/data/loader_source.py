"""The source of an asynchronous accessor that is a `DataLoader`.

The source only uses PyTorch's loader. The constructor receives everything else.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset, default_collate

from poptorch_emu.data.batch_source import BatchSource, batch_source, num_elements
from poptorch_emu.data.slot_collate import NextSlot, SlotCollate
from poptorch_emu.torch_versions import SingleProcessDataLoaderIter


class LoaderSource:
    """A loader as a source. The worker has a copy, which only the worker iterates."""

    def __init__(
        self,
        loader: TorchDataLoader[Any],
        drops_remainder: bool,
        hands_on_at_once: bool,
        owns_accessor: bool,
    ) -> None:
        """Stores the loader and its properties.

        Args:
            loader: loader to iterate.
            drops_remainder: whether rows left over by rebatching are dropped.
            hands_on_at_once: whether the loader yields its batches one by one and unchanged.
            owns_accessor: whether the loader owns the accessor and counts for both.
        """
        self._loader = loader
        self._drops_remainder = drops_remainder
        self._hands_on_at_once = hands_on_at_once
        self._owns_accessor = owns_accessor

    def __iter__(self) -> Iterator[Any]:
        """Iterates like the loader, but skips PyTorch's profiler mark around each batch if it can.

        The marks take 3 % of the time of a small batch, and no profiler sees them in a worker.
        """
        batches = iter(self._loader)
        # Within the mark PyTorch also counts the elements of an iterable dataset.
        is_counted = isinstance(self._loader.dataset, IterableDataset)
        if (
            is_counted
            or not self._hands_on_at_once
            or type(batches) is not SingleProcessDataLoaderIter
        ):
            return batches
        return _results_of(batches._next_data)

    @property
    def drops_remainder(self) -> bool:
        """Whether rows left over by rebatching are dropped."""
        return self._drops_remainder

    def collate_into(self, next_slot: NextSlot) -> SlotCollate | None:
        """Builds batches in the next slot if PyTorch's default would build them."""
        if not self._hands_on_at_once or self._loader.collate_fn is not default_collate:
            return None
        self._loader.collate_fn = SlotCollate(next_slot)
        return self._loader.collate_fn

    def counter(self, rebatched_rows: int | None) -> Callable[[], int]:
        """Returns a function that counts the elements, with a weak reference to an owning loader.

        With a strong reference, loader and worker would live until the next collection of cycles.
        """
        if not self._owns_accessor:
            return partial(num_elements, self._loader, rebatched_rows, self._drops_remainder)
        return partial(_length_of, weakref.ref(self._loader))


@batch_source.register
def _itself(source: LoaderSource, rebatched_rows: int | None) -> BatchSource:
    return source


def _length_of(reference: weakref.ref[TorchDataLoader[Any]]) -> int:
    loader = reference()
    if loader is None:
        raise TypeError(
            "The length is not known, because the DataLoader has been deleted. Keep a reference "
            "to it."
        )
    return len(loader)


def _results_of(function: Callable[[], Any]) -> Iterator[Any]:
    """Yields what `function` returns until it raises `StopIteration`."""
    with suppress(StopIteration):
        while True:
            yield function()
