"""Reductions over replicas."""

from __future__ import annotations

from typing import Any

from poptorch_emu.keras.ipu.ops.single_replica import require_single_replica

__all__ = ["assume_equal_across_replicas", "cross_replica_mean", "cross_replica_sum"]


def cross_replica_sum(
    x: Any, replica_group_size: int | None = None, name: str | None = None
) -> Any:
    """Returns a tensor, which is the sum over one replica (exact; several are refused).

    Args:
        x: the tensor.
        replica_group_size: accepted.
        name: accepted.

    Raises:
        Error: there are several replicas.
    """
    require_single_replica("cross_replica_ops.cross_replica_sum")
    return x


def cross_replica_mean(
    x: Any, replica_group_size: int | None = None, name: str | None = None
) -> Any:
    """Returns a tensor, which is the mean over one replica (exact; several are refused).

    Args:
        x: the tensor.
        replica_group_size: accepted.
        name: accepted.

    Raises:
        Error: there are several replicas.
    """
    require_single_replica("cross_replica_ops.cross_replica_mean")
    return x


def assume_equal_across_replicas(tensors: Any, inplace: bool = False) -> Any:
    """Returns tensors as they are (exact).

    Args:
        tensors: a structure.
        inplace: accepted.
    """
    return tensors
