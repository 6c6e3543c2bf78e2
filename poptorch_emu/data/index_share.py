"""The share of a dataset's elements that one of several processes reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.utils.data import Sampler

from poptorch_emu.errors import require


@dataclass(frozen=True)
class IndexShare:
    """A contiguous block of an order of all elements.

    Attributes:
        num_elements: number of elements of the dataset.
        offset: first index of the block of this process.
        num_items: length of the block.
        num_leftovers: largest shift of a block, which reaches elements that no process reads.
    """

    num_elements: int
    offset: int
    num_items: int
    num_leftovers: int


def index_share(
    process: int, num_processes: int, num_elements: int, rows_per_step: int, drop_last: bool
) -> IndexShare:
    """Returns the share of a process.

    Args:
        process: number of the process, in [0, num_processes).
        num_processes: number of processes.
        num_elements: number of elements of the dataset.
        rows_per_step: number of elements that one process consumes in a step.
        drop_last: whether each share has only whole steps, the same number for all processes.

    Source: PopTorch reference, DataLoader, distributed partition.
    """
    if drop_last:
        num_items = rows_per_step * (num_elements // (rows_per_step * num_processes))
        num_leftovers = num_elements % num_items if num_items else 0
        return IndexShare(num_elements, process * num_items, num_items, num_leftovers)
    num_items, num_longer = divmod(num_elements, num_processes)
    offset = process * num_items + min(process, num_longer)
    return IndexShare(num_elements, offset, num_items + (process < num_longer), 0)


class IndexShareSampler(Sampler[int]):
    """Yields the indices of one share, shuffled in an order that all processes know."""

    def __init__(self, share: IndexShare, shuffle: bool, seed: int | None) -> None:
        """Stores the seed that all processes share.

        Raises:
            AssertionError: `shuffle` is true but there is no seed.
        """
        require(
            not shuffle or seed is not None,
            "Seed must be set when shuffling, so that all processes agree on the order. Call "
            "poptorch.Options.randomSeed().",
        )
        self._share = share
        self._generator = None
        if shuffle and seed is not None:
            self._generator = torch.Generator().manual_seed(seed)
        self._is_shifted = False

    def __iter__(self) -> Iterator[int]:
        """Yields the indices. Every other shuffled block is shifted to reach the leftovers."""
        share = self._share
        if self._generator is None:
            return iter(range(share.offset, share.offset + share.num_items))
        self._is_shifted = not self._is_shifted
        start = share.offset + (share.num_leftovers if self._is_shifted else 0)
        order = torch.randperm(share.num_elements, generator=self._generator)
        return iter(order[start : start + share.num_items].tolist())

    def __len__(self) -> int:
        """Returns the length of the share."""
        return self._share.num_items
