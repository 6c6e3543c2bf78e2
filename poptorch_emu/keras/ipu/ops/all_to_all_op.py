"""Exchanges among replicas."""

from __future__ import annotations

from typing import Any

from keras import ops

from poptorch_emu.keras.ipu.ops.single_replica import require_single_replica

__all__ = ["all_gather", "all_to_all"]


def all_to_all(
    x: Any,
    split_dimension: int,
    concat_dimension: int,
    replication_factor: int,
    name: str | None = None,
) -> Any:
    """Returns a tensor, all of which one replica keeps (exact; several are refused).

    Args:
        x: the tensor.
        split_dimension: accepted.
        concat_dimension: accepted.
        replication_factor: accepted.
        name: accepted.

    Raises:
        Error: there are several replicas.
    """
    require_single_replica("all_to_all_op.all_to_all")
    return x


def all_gather(x: Any, replication_factor: int, name: str | None = None) -> Any:
    """Returns the tensors of all replicas, below each other (exact; several are refused).

    Args:
        x: the tensor.
        replication_factor: accepted.
        name: accepted.

    Raises:
        Error: there are several replicas.
    """
    require_single_replica("all_to_all_op.all_gather")
    return ops.expand_dims(x, 0)
