"""Checks, before an epoch begins, that one program can train with all its batches."""

from __future__ import annotations

from typing import Any

from poptorch_emu.log import logger


def check_epoch(iterator: Any, steps: int) -> None:
    """Checks the sizes and the number of batches, as far as they are known beforehand.

    Args:
        iterator: iterator of Keras over one epoch.
        steps: number of steps of one execution.

    Raises:
        ValueError: the last batch is smaller, or the last execution is shorter.
    """
    adapter, num_batches = iterator.data_adapter, iterator.num_batches  # For each replica.
    if num_batches is None:
        return
    in_data = adapter.num_batches
    rows = _rows_of_last_batch(adapter)
    if rows and in_data is not None and num_batches * iterator.replicas >= in_data:
        raise smaller_batch(rows)
    if num_batches < steps:
        logger.warning(
            "steps_per_execution is %d, but an epoch has only %d steps for each of %d replicas, "
            "so that each execution runs a whole epoch.",
            steps,
            num_batches,
            iterator.replicas,
        )
    elif num_batches % steps:
        raise shorter_execution(num_batches % steps, steps)


def _rows_of_last_batch(adapter: Any) -> int:
    """Returns the rows of a smaller last batch; 0 if there is none, or if that is unknown."""
    try:
        return int(adapter.partial_batch_size or 0) if adapter.has_partial_batch else 0
    except NotImplementedError:  # The user's own class of data does not say.
        return 0


def smaller_batch(rows: int, usual: int | None = None) -> ValueError:
    """Returns the error for a batch whose size differs from that of earlier batches."""
    others = "" if usual is None else f" of {usual}"
    return ValueError(
        f"A batch of {rows} samples in fit, after larger ones{others}: a program is compiled for "
        "batches of one size. Give as many samples as fill all batches, or set steps_per_epoch so "
        "that the last one is left out."
    )


def shorter_execution(batches: int, usual: int) -> ValueError:
    """Returns the error for an execution with fewer batches than earlier ones."""
    return ValueError(
        f"The last execution of the epoch has {batches} steps, but a program is compiled for "
        f"{usual}. Choose steps_per_execution so that it divides the steps of an epoch, which are "
        "its batches divided by the replicas, or set steps_per_epoch to a multiple of that."
    )
