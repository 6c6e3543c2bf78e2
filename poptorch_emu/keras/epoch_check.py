"""Checks before an epoch begins that one program can train with all its batches."""

from __future__ import annotations

from typing import Any

from poptorch_emu.log import logger


def check_epoch(iterator: Any, steps: int) -> None:
    """Checks what is known of the batches beforehand; of a generator nothing is.

    Args:
        iterator: of Keras, over one epoch.
        steps: of one execution.

    Raises:
        ValueError: the last batch is smaller, or the last execution shorter.
    """
    adapter, num_batches = iterator.data_adapter, iterator.num_batches  # Of each replica.
    if num_batches is None:
        return
    in_data = adapter.num_batches
    rows = _rows_of_last_batch(adapter)
    if rows and in_data is not None and num_batches * iterator.replicas >= in_data:
        raise smaller_batch(rows)
    if num_batches < steps:
        logger.warning(
            "steps_per_execution is %d, but an epoch has %d steps for each of %d replicas: an "
            "execution has as many.",
            steps,
            num_batches,
            iterator.replicas,
        )
    elif num_batches % steps:
        raise shorter_execution(num_batches % steps, steps)


def _rows_of_last_batch(adapter: Any) -> int:
    """Returns how many rows a smaller last batch has; 0 if there is none, or nobody knows."""
    try:
        return int(adapter.partial_batch_size or 0) if adapter.has_partial_batch else 0
    except NotImplementedError:  # Data of the user's own class.
        return 0


def smaller_batch(rows: int, usual: int | None = None) -> ValueError:
    """Returns the error for a batch of another size than those before."""
    others = "" if usual is None else f" of {usual}"
    return ValueError(
        f"A batch of {rows} samples in fit, after larger ones{others}: a program is compiled for "
        "batches of one size. Give as many samples as fill all batches, or set steps_per_epoch so "
        "that the last one is left out."
    )


def shorter_execution(batches: int, usual: int) -> ValueError:
    """Returns the error for an execution of fewer batches than those before."""
    return ValueError(
        f"The last execution of the epoch has {batches} steps, but a program is compiled for "
        f"{usual}. Choose steps_per_execution so that it divides the steps of an epoch, which are "
        "its batches divided by the replicas, or set steps_per_epoch to a multiple of that."
    )
