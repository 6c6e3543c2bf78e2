"""Exchanges among replicas."""

from __future__ import annotations

from typing import Any

from keras import ops

from poptorch_emu.keras.ipu.ops.replicas import exchanged, gathered, num_replicas

__all__ = ["all_gather", "all_to_all"]


def all_to_all(
    x: Any,
    split_dimension: int,
    concat_dimension: int,
    replication_factor: int,
    name: str | None = None,
) -> Any:
    """Returns what the replicas have sent to this one, one after another (exact).

    Each cuts its tensor into as many equal pieces as there are replicas, and sends piece s to
    replica s.

    Args:
        x: the tensor.
        split_dimension: along which it is cut.
        concat_dimension: along which what has come is put together.
        replication_factor: the number of replicas.
        name: accepted.

    Raises:
        ValueError: there are others, or the tensor cannot be cut so.
    """
    count = num_replicas("all_to_all_op.all_to_all", "replication_factor", replication_factor)
    x = ops.convert_to_tensor(x)
    if x.shape[split_dimension] % replication_factor:
        raise ValueError(
            f"ipu.all_to_all_op.all_to_all cuts axis {split_dimension} of {tuple(x.shape)} into "
            f"{replication_factor} pieces, but {x.shape[split_dimension]} does not divide so."
        )
    pieces = exchanged(ops.stack(ops.split(x, count, axis=split_dimension)), count)
    return ops.concatenate(ops.unstack(pieces), axis=concat_dimension)


def all_gather(x: Any, replication_factor: int, name: str | None = None) -> Any:
    """Returns the tensors of all replicas on a new first axis (exact).

    Args:
        x: the tensor.
        replication_factor: the number of replicas.
        name: accepted.

    Raises:
        ValueError: there are others.
    """
    count = num_replicas("all_to_all_op.all_gather", "replication_factor", replication_factor)
    return gathered(x, count)
