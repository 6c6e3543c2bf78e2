"""Exchanges between replicas inside forward and backward.

Replicas exchange values of the same micro-batch. In training the replicas of other processes take
part, too; in inference with several processes the functions raise. They also raise inside a loop
or a branch. Outside a trace nothing is exchanged: a gather returns zeros, and the other functions
return their input.
"""

from __future__ import annotations

import torch

from poptorch_emu.companions.poptorch_experimental_addons._impl import addon

__all__ = [
    "all_gather_cross_replica",
    "all_gather_cross_replica_identical_grads_in",
    "all_reduce_cross_replica_sum",
    "all_to_all_single_cross_replica",
]


def all_gather_cross_replica_identical_grads_in(
    x: torch.Tensor, replication_factor: int
) -> torch.Tensor:
    """Gathers the tensors of all replicas (exact).

    The gradient is each replica's own slice, which is correct if it is equal on all replicas.

    Args:
        x: tensor of any shape.
        replication_factor: the number of replicas of the model.

    Returns:
        (replication_factor, *x.shape); zeros outside a trace.

    Raises:
        Error: the model has another number of replicas, or replicas cannot exchange values here.
    """
    example = torch.zeros(replication_factor, *x.shape, dtype=x.dtype, device=x.device)
    return addon("ReplicatedAllGather", [x], example)


def all_gather_cross_replica(x: torch.Tensor, replication_factor: int) -> torch.Tensor:
    """Gathers the tensors of all replicas (exact).

    The gradient is the sum over replicas of each replica's own slice.

    Args:
        x: tensor of any shape.
        replication_factor: the number of replicas of the model.

    Returns:
        (replication_factor, *x.shape); zeros outside a trace.

    Raises:
        Error: the model has another number of replicas, or replicas cannot exchange values here.
    """
    gathered = all_gather_cross_replica_identical_grads_in(x, replication_factor)
    return all_reduce_cross_replica_sum(gathered, replication_factor, insert_in_grad_graph=True)


def all_reduce_cross_replica_sum(
    x: torch.Tensor, replication_factor: int, insert_in_grad_graph: bool = False
) -> torch.Tensor:
    """Adds up the tensors of all replicas (exact).

    Args:
        x: tensor of any shape.
        replication_factor: the number of replicas of the model.
        insert_in_grad_graph: whether to return `x` itself and add up its gradients instead. By
            default, the gradient passes unchanged.

    Returns:
        The sum, in the shape of `x`; `x` outside a trace.

    Raises:
        Error: the model has another number of replicas, or replicas cannot exchange values here.
    """
    attributes = {
        "op": "add",
        "__collectiveReplicaGrouping": [replication_factor, 1, replication_factor],
        "backwards": bool(insert_in_grad_graph),
    }
    return addon("ReplicatedAllReduceTP", [x], x, attributes)


def all_to_all_single_cross_replica(x: torch.Tensor, replication_factor: int) -> torch.Tensor:
    """Sends piece s of the first axis to replica s (exact).

    The gradient is sent back to the replica that sent the piece.

    Args:
        x: tensor whose first axis is cut into `replication_factor` equal pieces.
        replication_factor: the number of replicas of the model.

    Returns:
            The pieces that the replicas sent, in replica order and in the shape of `x`; `x` outside
            a trace.

        Raises:
            ValueError: `replication_factor` does not divide the size of the first axis.
            Error: the model has another number of replicas, or replicas cannot exchange values
                here.
    """
    if x.dim() == 0 or x.size(0) % replication_factor:
        raise ValueError(
            f"all_to_all_single_cross_replica was given a tensor of shape {list(x.shape)}; the "
            f"size of its first axis must be a multiple of replication_factor={replication_factor}"
        )
    return addon("ReplicatedAllToAll", [x], x)
