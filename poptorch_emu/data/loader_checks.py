"""Errors and warnings of a `DataLoader` about its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset

from poptorch_emu.errors import make_error, require
from poptorch_emu.log import logger
from poptorch_emu.troubleshooting import Topic


def check_batch_sampler(batch_size: int | None, shuffle: bool | None) -> None:
    """Raises an `Error` if other arguments do the work of the batch sampler."""
    if batch_size != 1 or shuffle:
        raise make_error(
            "`batch_sampler` option is mutually exclusive with batch_size, shuffle. Got "
            f"batch_size={batch_size} and shuffle={shuffle}: let the sampler do both."
        )


def check_partitioning(
    dataset: Dataset[Any],
    batch_size: int | None,
    shuffle: bool | None,
    torch_arguments: Mapping[str, Any],
    seed: int | None,
) -> None:
    """Checks that several processes can share a dataset by its indices.

    Raises:
        Error: a sampler of the user chooses the indices.
        AssertionError: the dataset has no indices, or the processes could not agree on them.
    """
    for name in ("batch_sampler", "sampler"):
        if torch_arguments.get(name) is not None:
            raise make_error(
                f"`{name}` option is mutually exclusive with auto_distributed_partitioning=True. "
                "Set auto_distributed_partitioning=False and let the sampler choose the samples "
                "that each process reads."
            )
    require(
        not isinstance(dataset, IterableDataset),
        "auto_distributed_partitioning not supported for IterableDataset: it has no indices to "
        "share. Set auto_distributed_partitioning=False and let the dataset choose the samples "
        "that each process reads.",
    )
    require(
        batch_size is not None,
        "batch_size=None not allowed when using auto_distributed_partitioning. Give a batch_size, "
        "or set auto_distributed_partitioning=False.",
    )
    require(
        not shuffle or seed is not None,
        "When using auto_distributed_partitioning with shuffle=True, all processes must agree on "
        "the order. Give them the same seed by poptorch.Options.randomSeed().",
    )


def warn_of_duplicates(loader: DataLoader[Any]) -> None:
    """Warns if each of several workers would yield the whole dataset."""
    is_iterable = isinstance(loader.dataset, IterableDataset)
    if is_iterable and loader.num_workers > 1 and loader.worker_init_fn is None:
        logger.warning(
            "IterableDataset used with num_workers=%d, but without worker_init_fn: each worker "
            "iterates all of it, so the data is duplicated. Give each worker its own part in a "
            "worker_init_fn.",
            loader.num_workers,
        )


def warn_of_no_step(num_rows: int, rows_per_step: int, unit: str) -> None:
    """Warns if the data is too short for one step, with `drop_last=True`.

    Args:
        num_rows: number of rows, or of batches of a batch sampler.
        rows_per_step: number of them that one step consumes.
        unit: "rows" or "batches".
    """
    if num_rows < rows_per_step:
        logger.warning(
            "One step takes %d %s, but the dataset has %d, and drop_last=True: the loader yields "
            "nothing. Give it more data, choose a smaller batch_size, deviceIterations, "
            "gradientAccumulation or replicationFactor, or pad the dataset; %s",
            rows_per_step,
            unit,
            num_rows,
            Topic.EMPTY_LOADER,
        )


def warn_of_odd_rows(dataset: Any, rows_per_step: int) -> None:
    """Warns if the last step has too few rows, with `drop_last=False`."""
    is_countable = isinstance(dataset, Sized) and not isinstance(dataset, IterableDataset)
    if is_countable and len(dataset) % rows_per_step != 0:
        logger.warning(
            "The number of elements in the dataset (%d) is not a multiple of the %d that one step "
            "takes (combined batch size times number of processes), and drop_last=False: the last "
            "batch is smaller than what the model is compiled for. Use drop_last=True or pad the "
            "dataset; %s",
            len(dataset),
            rows_per_step,
            Topic.ODD_LAST_BATCH,
        )


def warn_of_odd_batches(batch_sampler: Any, batches_per_step: int) -> None:
    """Warns if the last step has too few batches, with `drop_last=False`."""
    if batches_per_step == 1:
        return
    try:
        num_batches = len(batch_sampler)
    except (TypeError, NotImplementedError):
        logger.warning(
            "The `batch_sampler` __len__ method is not implemented, so it is not known whether it "
            "yields a multiple of the %d batches that one step takes, and drop_last=False: the "
            "last step may have fewer samples than the model is compiled for. Implement __len__, "
            "or use drop_last=True.",
            batches_per_step,
        )
        return
    if num_batches % batches_per_step != 0:
        logger.warning(
            "The number of batches generated by the batch sampler (%d) is not a multiple of the %d "
            "that one step takes, and drop_last=False: the last step is smaller than what the "
            "model is compiled for. Use drop_last=True; %s",
            num_batches,
            batches_per_step,
            Topic.ODD_LAST_BATCH,
        )


def num_rows_of(batch_sampler: Any, num_rows: int) -> int:
    """Returns the number of rows in all batches of a sampler over `num_rows` rows.

    The number is exact for PyTorch's sampler. A sampler of the user may yield smaller batches than
    its `batch_size`.
    """
    if isinstance(batch_sampler, BatchSampler):
        num_drawn = len(batch_sampler.sampler)  # type: ignore[arg-type]
        left_over = num_drawn % batch_sampler.batch_size
        return num_drawn - left_over if batch_sampler.drop_last else num_drawn
    size = getattr(batch_sampler, "batch_size", None)
    return num_rows if size is None else min(num_rows, len(batch_sampler) * size)
