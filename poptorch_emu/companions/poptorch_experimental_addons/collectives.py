"""Exchanges between replicas inside forward and backward.

A micro-batch of a replica meets the same micro-batch of all others, in training those of other
processes included. Replicas cannot meet inside a loop or a branch, and in inference not those of
several processes. Outside a trace nothing is exchanged: a gather gives zeros, the others what they
are given.
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

    The gradient is each replica's own slice, which is right where it is the same on all of them.

    Args:
        x: of any shape.
        replication_factor: the number of replicas of the model.

    Returns:
        (replication_factor, *x.shape); zeros outside a trace.

    Raises:
        Error: the model has another number of replicas, or they cannot meet here.
    """
    example = torch.zeros(replication_factor, *x.shape, dtype=x.dtype, device=x.device)
    return addon("ReplicatedAllGather", [x], example)


def all_gather_cross_replica(x: torch.Tensor, replication_factor: int) -> torch.Tensor:
    """Gathers the tensors of all replicas (exact).

    The gradient is the sum over replicas of each replica's own slice.

    Args:
        x: of any shape.
        replication_factor: the number of replicas of the model.

    Returns:
        (replication_factor, *x.shape); zeros outside a trace.

    Raises:
        Error: the model has another number of replicas, or they cannot meet here.
    """
    gathered = all_gather_cross_replica_identical_grads_in(x, replication_factor)
    return all_reduce_cross_replica_sum(gathered, replication_factor, insert_in_grad_graph=True)


def all_reduce_cross_replica_sum(
    x: torch.Tensor, replication_factor: int, insert_in_grad_graph: bool = False
) -> torch.Tensor:
    """Adds up the tensors of all replicas (exact).

    Args:
        x: of any shape.
        replication_factor: the number of replicas of the model.
        insert_in_grad_graph: return `x` itself, and add up its gradients instead. Otherwise the
            gradient passes unchanged.

    Returns:
        The sum, in the shape of `x`; `x` outside a trace.

    Raises:
        Error: the model has another number of replicas, or they cannot meet here.
    """
    attributes = {
        "op": "add",
        "__collectiveReplicaGrouping": [replication_factor, 1, replication_factor],
        "backwards": bool(insert_in_grad_graph),
    }
    return addon("ReplicatedAllReduceTP", [x], x, attributes)


def all_to_all_single_cross_replica(x: torch.Tensor, replication_factor: int) -> torch.Tensor:
    """Sends piece s of the first axis to replica s (exact).

    The gradient goes the same way back.

    Args:
        x: its first axis is cut into as many equal pieces as there are replicas.
        replication_factor: the number of replicas of the model.

    Returns:
        What the replicas have sent, in their order and in the shape of `x`; `x` outside a trace.

    Raises:
        ValueError: the first axis cannot be cut so.
        Error: the model has another number of replicas, or they cannot meet here.
    """
    if x.dim() == 0 or x.size(0) % replication_factor:
        raise ValueError(
            f"all_to_all_single_cross_replica was given a tensor of shape {list(x.shape)}; the "
            f"size of its first axis must be a multiple of replication_factor={replication_factor}"
        )
    return addon("ReplicatedAllToAll", [x], x)
