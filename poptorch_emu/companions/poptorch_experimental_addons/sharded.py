"""Products of matrices whose rows or columns are divided among replicas."""

from __future__ import annotations

import torch

from poptorch_emu.companions.poptorch_experimental_addons import collectives

__all__ = [
    "colrowrep_sharded_matmul",
    "repcolcol_sharded_matmul",
    "rowcolrow_sharded_matmul",
]


def rowcolrow_sharded_matmul(
    X: torch.Tensor,
    Y: torch.Tensor,
    replication_factor: int,
    num_chunks: int = 1,
) -> torch.Tensor:
    """Multiplies rows of X by the columns of Y on all replicas (exact).

    Args:
        X: the rows of this replica, of shape (m, K).
        Y: (K, n), the columns of this replica.
        replication_factor: the number of replicas of the model.
        num_chunks: number of parts of K, which are gathered and multiplied in turn.

    Returns:
        (m, n * replication_factor).

    Raises:
        ValueError: the shapes do not fit, or `num_chunks` does not divide K.
        Error: the model has another number of replicas.
    """
    _check(X, Y)
    if num_chunks < 1 or X.size(1) % num_chunks:
        raise ValueError(f"num_chunks={num_chunks} does not divide the {X.size(1)} columns of X")
    size = X.size(1) // num_chunks
    columns = Y.size(1) * replication_factor
    total = torch.zeros(X.size(0), columns, dtype=torch.float32, device=X.device)
    for chunk in range(num_chunks):
        part = slice(chunk * size, (chunk + 1) * size)
        gathered = collectives.all_gather_cross_replica(Y[part], replication_factor)
        total = total + X[:, part] @ gathered.permute(1, 0, 2).reshape(size, columns)
    return total


def repcolcol_sharded_matmul(
    X: torch.Tensor,
    Y: torch.Tensor,
    replication_factor: int,
) -> torch.Tensor:
    """Multiplies X, the same on all replicas, by columns of Y (exact).

    Args:
        X: matrix of shape (m, K), whose gradient is summed over replicas.
        Y: (K, n), the columns of this replica.
        replication_factor: the number of replicas of the model.

    Returns:
        (m, n), the columns of this replica.

    Raises:
        ValueError: the shapes do not fit.
        Error: the model has another number of replicas.
    """
    _check(X, Y)
    same = collectives.all_reduce_cross_replica_sum(
        X, replication_factor, insert_in_grad_graph=True
    )
    return same @ Y


def colrowrep_sharded_matmul(
    X: torch.Tensor,
    Y: torch.Tensor,
    replication_factor: int,
) -> torch.Tensor:
    """Multiplies columns of X by rows of Y and adds up over replicas (exact).

    Args:
        X: the columns of this replica, of shape (m, K / replication_factor).
        Y: the rows of this replica, of shape (K / replication_factor, n).
        replication_factor: the number of replicas of the model.

    Returns:
        (m, n), the same on all replicas.

    Raises:
        ValueError: the shapes do not fit.
        Error: the model has another number of replicas.
    """
    _check(X, Y)
    return collectives.all_reduce_cross_replica_sum(X @ Y, replication_factor)


def _check(X: torch.Tensor, Y: torch.Tensor) -> None:
    if X.dim() != 2 or Y.dim() != 2 or X.size(1) != Y.size(0):
        raise ValueError(
            f"X has shape {list(X.shape)} and Y {list(Y.shape)}; expected (m, K) and (K, n)"
        )
