"""Operators that exchange values between replicas inside forward and backward.

Each micro-batch of a replica exchanges with the same micro-batch of all other replicas, including
those of other processes. The engine runs exchanges between the instructions of a segment
(`csrc/runtime/network/collective.h`), so they have no kernels. `num_replicas` counts the replicas
of all processes.
"""

from __future__ import annotations

import torch
from torch import fx

from poptorch_emu.torch_versions import OpOverload

for _name in ("all_gather", "all_reduce", "all_to_all", "own_piece"):
    torch.library.define(f"poptorch_emu::{_name}", "(Tensor x, int num_replicas) -> Tensor")

# Returns the values of all replicas on a new first axis.
ALL_GATHER: OpOverload = torch.ops.poptorch_emu.all_gather.default
# Returns the sum of the values of all replicas.
ALL_REDUCE: OpOverload = torch.ops.poptorch_emu.all_reduce.default
# Cuts the first axis of each replica's value into one piece for each replica, and returns the
# pieces that have the replica's own number.
ALL_TO_ALL: OpOverload = torch.ops.poptorch_emu.all_to_all.default
# Returns the replica's own entry of the first axis, without an exchange.
OWN_PIECE: OpOverload = torch.ops.poptorch_emu.own_piece.default

COLLECTIVES = (ALL_GATHER, ALL_REDUCE, ALL_TO_ALL)


def is_collective(node: fx.Node) -> bool:
    """Returns whether a node is an exchange, in which each replica waits for the others."""
    return node.target in COLLECTIVES


def is_same_everywhere(node: fx.Node) -> bool:
    """Returns whether a node returns the same value on all replicas, whatever its inputs are."""
    return node.target in (ALL_GATHER, ALL_REDUCE)


@torch.library.register_fake("poptorch_emu::all_gather")  # type: ignore[untyped-decorator]
def _all_gather(x: torch.Tensor, num_replicas: int) -> torch.Tensor:
    return x.new_empty((num_replicas, *x.shape))


@torch.library.register_fake("poptorch_emu::all_reduce")  # type: ignore[untyped-decorator]
def _all_reduce(x: torch.Tensor, num_replicas: int) -> torch.Tensor:
    return x.new_empty(x.shape)


@torch.library.register_fake("poptorch_emu::all_to_all")  # type: ignore[untyped-decorator]
def _all_to_all(x: torch.Tensor, num_replicas: int) -> torch.Tensor:
    return x.new_empty(x.shape)


@torch.library.register_fake("poptorch_emu::own_piece")  # type: ignore[untyped-decorator]
def _own_piece(x: torch.Tensor, num_replicas: int) -> torch.Tensor:
    return x.new_empty(x.shape[1:])
