"""Reductions over replicas."""

from __future__ import annotations

from typing import Any

from poptorch_emu.keras.ipu.ops.replicas import num_replicas, summed

__all__ = ["assume_equal_across_replicas", "cross_replica_mean", "cross_replica_sum"]


def cross_replica_sum(
    x: Any, replica_group_size: int | None = None, name: str | None = None
) -> Any:
    """Returns the sum of a tensor over all replicas; its gradient is summed, too (exact).

    Args:
        x: tensor of each replica.
        replica_group_size: number of replicas, which is the default.
        name: accepted.

    Raises:
        ValueError: `replica_group_size` is not the number of replicas.
    """
    own = "cross_replica_ops.cross_replica_sum"
    return summed(x, num_replicas(own, "replica_group_size", replica_group_size))


def cross_replica_mean(
    x: Any, replica_group_size: int | None = None, name: str | None = None
) -> Any:
    """Returns the mean of a tensor over all replicas; see `cross_replica_sum` (exact)."""
    own = "cross_replica_ops.cross_replica_mean"
    count = num_replicas(own, "replica_group_size", replica_group_size)
    return summed(x, count) / count


def assume_equal_across_replicas(tensors: Any, inplace: bool = False) -> Any:
    """Returns the tensors unchanged (exact).

    Args:
        tensors: structure of tensors.
        inplace: accepted.
    """
    return tensors
