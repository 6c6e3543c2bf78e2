"""Exchanges between replicas."""

from __future__ import annotations

from typing import Any

from keras import ops

from poptorch_emu.companions.poptorch_experimental_addons import collectives
from poptorch_emu.keras.ipu.ops.replicas import exchanged, num_replicas

__all__ = ["all_gather", "all_to_all"]


def all_to_all(
    x: Any,
    split_dimension: int,
    concat_dimension: int,
    replication_factor: int,
    name: str | None = None,
) -> Any:
    """Returns the pieces that the replicas have sent to this one, in order (exact).

    Each replica cuts its tensor into one equal piece for each replica, and sends piece s to replica
    s.

    Args:
        x: tensor to exchange.
        split_dimension: axis along which the tensor is cut.
        concat_dimension: axis along which the received pieces are joined.
        replication_factor: number of replicas.
        name: accepted.

    Raises:
        ValueError: `replication_factor` is not the number of replicas, or does not divide the axis.
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
        x: tensor to gather.
        replication_factor: number of replicas.
        name: accepted.

    Raises:
        ValueError: `replication_factor` is not the number of replicas.
    """
    count = num_replicas("all_to_all_op.all_gather", "replication_factor", replication_factor)
    x = ops.convert_to_tensor(x)
    return x.unsqueeze(0) if count == 1 else collectives.all_gather_cross_replica(x, count)
