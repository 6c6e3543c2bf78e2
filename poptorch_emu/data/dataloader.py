"""`poptorch.DataLoader`: PyTorch's loader, with batches of the size that one call consumes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, Sampler

from poptorch_emu.config import batches_per_step
from poptorch_emu.data.batch_source import batch_source
from poptorch_emu.data.data_accessor import AsynchronousDataAccessor
from poptorch_emu.data.index_share import IndexShareSampler, index_share
from poptorch_emu.data.loader_checks import (
    check_batch_sampler,
    check_partitioning,
    num_rows_of,
    warn_of_duplicates,
    warn_of_no_step,
    warn_of_odd_batches,
    warn_of_odd_rows,
)
from poptorch_emu.data.loader_source import LoaderSource
from poptorch_emu.enums import DataLoaderMode
from poptorch_emu.errors import make_error, require
from poptorch_emu.options import Options
from poptorch_emu.structure import flatten_tensors, rebuild

# Source: PopTorch reference, default of `buffer_size`.
_DEFAULT_BUFFERS = 3


class DataLoader(TorchDataLoader[Any]):
    """Yields whole batches for one call of a wrapped model (exact).

    Attributes:
        rebatched_drop_last: whether rows left over by rebatching are dropped.
        batch_sampler_drop_last: whether batches of the user's sampler that do not make a whole step
            are dropped; `None` without such a sampler.

    Example:
        >>> options = poptorch.Options().deviceIterations(5)
        >>> dataset = torch.utils.data.TensorDataset(torch.arange(60))
        >>> loader = poptorch.DataLoader(options, dataset, batch_size=4)
        >>> [len(rows) for (rows,) in loader]
        [20, 20, 20]
    """

    def __init__(
        self,
        options: Options,
        dataset: Dataset[Any],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        num_workers: int = 0,
        drop_last: bool = True,
        persistent_workers: bool | None = None,
        auto_distributed_partitioning: bool = True,
        mode: DataLoaderMode = DataLoaderMode.Sync,
        async_options: dict[str, Any] | None = None,
        rebatched_worker_size: int | None = None,
        batch_sampler: Sampler[list[int]] | Iterable[list[int]] | None = None,
        **kwargs: Any,
    ) -> None:
        """Freezes `options`; in the asynchronous modes starts the worker process.

        Args:
            options: options of the model that will consume the batches.
            dataset: dataset, as in PyTorch.
            batch_size: rows of one micro-batch; `None` yields the elements unchanged.
            shuffle: whether rows are shuffled, as in PyTorch.
            num_workers: number of workers, as in PyTorch. In the asynchronous modes these are
                helpers of the worker.
            drop_last: whether rows that do not fill a step are dropped.
            persistent_workers: whether workers stay between epochs, as in PyTorch; by default true
                if there are workers.
            auto_distributed_partitioning: whether each of several processes reads its own share.
            mode: mode that decides which process builds batches. `Async` with `drop_last=False` is
                `AsyncRebatched`.
            async_options: arguments of the `AsynchronousDataAccessor`; not used in mode `Sync`.
            rebatched_worker_size: rows that `AsyncRebatched` loads at once; by default a step.
            batch_sampler: batch sampler, as in PyTorch. One step consumes several of its batches.
            kwargs: other arguments of PyTorch's loader.

        Raises:
            Error: `batch_sampler` contradicts other arguments.
            AssertionError: other arguments contradict each other.
        """
        _check_kinds(options, mode)
        options._freeze()
        is_asynchronous = mode != DataLoaderMode.Sync
        has_batch_sampler = batch_sampler is not None
        rows = getattr(batch_sampler, "batch_size", batch_size) if has_batch_sampler else batch_size
        self._options = options
        self._batches_per_step = _batches_per_step(options)
        self._combined = None if rows is None else rows * self._batches_per_step
        self._combined_batch_size = self._combined  # Programs read this private name of PopTorch's.
        self._keeps_remainder = not drop_last
        self._is_rebatching = (self._combined or 0) > 1 and (
            mode == DataLoaderMode.AsyncRebatched or (is_asynchronous and not drop_last)
        )
        self.rebatched_drop_last = drop_last and not has_batch_sampler
        self.batch_sampler_drop_last = drop_last if has_batch_sampler else None
        self._accessor: AsynchronousDataAccessor | None = None
        if has_batch_sampler:
            check_batch_sampler(batch_size, shuffle)
            kwargs["batch_sampler"] = batch_sampler
        else:
            kwargs["batch_size"] = self._rows_at_once(rebatched_worker_size)
            kwargs["drop_last"] = drop_last and rows is not None and not self._is_rebatching
        if auto_distributed_partitioning and options.Distributed.numProcesses > 1:
            check_partitioning(dataset, batch_size, shuffle, kwargs, _seed_of(options))
            kwargs["sampler"] = self._share_sampler(dataset, bool(shuffle))
            shuffle = None
        super().__init__(
            dataset,
            shuffle=shuffle,
            num_workers=num_workers,
            persistent_workers=num_workers > 0
            if persistent_workers is None
            else persistent_workers,
            **kwargs,
        )
        warn_of_duplicates(self)
        if drop_last:
            self._warn_of_no_step()
        else:
            self._warn_of_remainder()
        if is_asynchronous:
            self._accessor = self._start_accessor(async_options or {})

    @property
    def combinedBatchSize(self) -> int | None:
        """The rows of one step, or `None` if batching is off (exact)."""
        return self._combined

    @property
    def options(self) -> Options:
        """The frozen options (exact)."""
        return self._options

    def terminate(self) -> None:
        """Stops the worker process of the asynchronous modes permanently (exact)."""
        if self._accessor is not None:
            self._accessor.terminate()

    def __len__(self) -> int:
        """Returns the number of steps in one iteration.

        Unlike in PopTorch the number is also right with a batch sampler, whose batches are joined.
        """
        if self._is_rebatching and self._combined is not None:
            return _num_groups(self._num_rows(), self._combined, not self.rebatched_drop_last)
        return _num_groups(super().__len__(), self._num_joined, self._keeps_remainder)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Starts an iteration. In the asynchronous modes it ends the iteration before."""
        if self._accessor is not None:
            return iter(self._accessor)
        batches = super().__iter__()
        if self._num_joined == 1:
            return batches
        return _joined(batches, self._num_joined, self._keeps_remainder)

    def __repr__(self) -> str:
        """Returns the dataset's class, the rows of a step, the number of steps, and the mode."""
        try:
            steps: int | None = len(self)
        except (TypeError, NotImplementedError):
            steps = None  # The dataset has no length.
        mode = DataLoaderMode.Sync if self._accessor is None else DataLoaderMode.Async
        if self._is_rebatching:
            mode = DataLoaderMode.AsyncRebatched
        return (
            f"{type(self).__name__}({type(self.dataset).__name__}, rows_per_step={self._combined}, "
            f"num_steps={steps}, num_workers={self.num_workers}, mode={mode})"
        )

    @property
    def _num_joined(self) -> int:
        """Number of PyTorch's batches that this loader joins to a step."""
        is_joining = self.batch_sampler_drop_last is not None and not self._is_rebatching
        return self._batches_per_step if is_joining else 1

    def _num_rows(self) -> int:
        rows: Any = self.dataset if isinstance(self.dataset, IterableDataset) else self.sampler
        if self.batch_sampler_drop_last is None:
            return len(rows)
        return num_rows_of(self.batch_sampler, len(rows))

    def _rows_at_once(self, rebatched_worker_size: int | None) -> int | None:
        if not self._is_rebatching or rebatched_worker_size is None:
            return self._combined
        require(
            self._combined is not None and rebatched_worker_size <= self._combined,
            f"The rebatched_worker_size ({rebatched_worker_size}) must be <= to the combined "
            f"batch size ({self._combined}): the worker joins batches into larger ones of the "
            "combined batch size.",
        )
        return rebatched_worker_size

    def _share_sampler(self, dataset: Any, shuffle: bool) -> IndexShareSampler:
        distributed = self._options.Distributed
        assert self._combined is not None, "Partitioning without batches is checked before."
        share = index_share(
            distributed.processId,
            distributed.numProcesses,
            len(dataset),
            self._combined,
            not self._keeps_remainder,
        )
        return IndexShareSampler(share, shuffle, _seed_of(self._options))

    def _start_accessor(self, arguments: dict[str, Any]) -> AsynchronousDataAccessor:
        require(
            "rebatched_size" not in arguments,
            "You cannot use DataLoaderMode.AsyncRebatched and set rebatched_size in "
            "async_options, because the loader sets it to its combined batch size. mode=Async "
            "with drop_last=False rebatches in the same way. Remove rebatched_size.",
        )
        arguments = {"buffer_size": _num_buffers(self._options), **arguments}
        return AsynchronousDataAccessor(
            self._source(owns_accessor=True),
            rebatched_size=self._combined if self._is_rebatching else None,
            **arguments,
        )

    def _warn_of_no_step(self) -> None:
        is_shared = isinstance(self.sampler, IndexShareSampler)
        try:
            if self.batch_sampler_drop_last is not None:
                num_batches = len(self.batch_sampler)  # type: ignore[arg-type]
                warn_of_no_step(num_batches, self._batches_per_step, "batches")
            elif is_shared and self._combined is not None:
                num_processes = self._options.Distributed.numProcesses
                warn_of_no_step(len(self.dataset), self._combined * num_processes, "rows")  # type: ignore[arg-type]
            elif self._combined is not None:
                warn_of_no_step(self._num_rows(), self._combined, "rows")
        except (TypeError, NotImplementedError):
            pass  # The dataset has no length.

    def _warn_of_remainder(self) -> None:
        if self.batch_sampler_drop_last is not None:
            warn_of_odd_batches(self.batch_sampler, self._batches_per_step)
        elif self._combined is not None:
            num_processes = self._options.Distributed.numProcesses
            warn_of_odd_rows(self.dataset, self._combined * num_processes)

    def _accessible_source(self, rebatched_size: int | None) -> LoaderSource:
        """Returns the source for an accessor on this loader; raises if it has one already."""
        if self._accessor is not None:
            raise make_error(
                "The DataLoader already uses an AsynchronousDataAccessor internally: iterate the "
                "DataLoader itself, which uses that one, or create it with "
                "mode='poptorch.DataLoaderMode.Sync'."
            )
        require(
            not self._keeps_remainder
            or (self._combined or 1) == 1
            or rebatched_size is not None
            or self.batch_sampler_drop_last is not None,
            "The 'drop_last=False' option from the DataLoader makes a last batch of another size, "
            "for which the AsynchronousDataAccessor has no buffers. Give it 'rebatched_size', "
            f"here {self._combined}, or use drop_last=True.",
        )
        return self._source(owns_accessor=False)

    def _source(self, owns_accessor: bool) -> LoaderSource:
        drops_remainder = self.rebatched_drop_last is not False
        return LoaderSource(self, drops_remainder, self._hands_on_at_once, owns_accessor)

    @property
    def _hands_on_at_once(self) -> bool:
        """Whether this process builds the batches and yields them one by one and unchanged."""
        is_own = type(self).__iter__ is DataLoader.__iter__
        return is_own and self._num_joined == 1 and not self.num_workers


batch_source.register(DataLoader, DataLoader._accessible_source)


def _check_kinds(options: Any, mode: Any) -> None:
    require(
        isinstance(options, Options),
        f"options must be poptorch.Options, the first argument, not {type(options)}.",
    )
    require(
        isinstance(mode, DataLoaderMode),
        f"mode must be a poptorch.DataLoaderMode, not {mode!r}.",
    )


def _batches_per_step(options: Options) -> int:
    return batches_per_step(
        options.device_iterations,
        options.Training.gradient_accumulation,
        options.replication_factor,
        options.input_group_size,
    )


def _num_buffers(options: Options) -> int:
    """Returns the number of batches to build ahead: PopTorch's default or a deeper prefetch depth.

    One slot more than the depth is needed, because it holds the batch of the running call.
    """
    depth: int = options._Popart.options.get("defaultPrefetchBufferingDepth", 1)
    return max(_DEFAULT_BUFFERS, depth + 1)


def _seed_of(options: Options) -> int | None:
    return options.random_seed if options.exists("random_seed") else None


def _num_groups(count: int, group_size: int, keeps_remainder: bool) -> int:
    whole, rest = divmod(count, group_size)
    return whole + (1 if rest and keeps_remainder else 0)


def _joined(batches: Iterator[Any], group_size: int, keeps_remainder: bool) -> Iterator[Any]:
    """Yields `group_size` consecutive batches as one, joined along axis 0."""
    while group := list(islice(batches, group_size)):
        if len(group) == group_size or keeps_remainder:
            columns = zip(*(flatten_tensors(batch, group[0]) for batch in group), strict=True)
            yield rebuild(group[0], map(torch.cat, columns))
