"""Exchanges between replicas inside forward; what they are where there is one replica."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.ops.named.named_operator import Attributes
from poptorch_emu.trace import blocks, regions

# Of PopART's enumeration of operators.
_ADD = 0


def check_one_replica(name: str) -> None:
    """Refuses an exchange between several replicas.

    Raises:
        Error: the model has several replicas.
    """
    replicas = regions.current().num_replicas if blocks.is_tracing() else 1
    if replicas > 1:
        raise compiler_error(
            f"{name} over {replicas} replicas is not supported in forward: replicas meet in the "
            "update alone. Use one replica, or reduce the outputs on the host."
        )


def check_sum(name: str, given: Mapping[str, Any]) -> None:
    """Refuses a reduction that is no sum.

    Raises:
        Error: it is another one.
    """
    if given["__collectiveOperator"] != _ADD:
        raise compiler_error(
            f"{name} has the operator {given['__collectiveOperator']}; only {_ADD} (a sum) is "
            "supported."
        )


def all_gather(inputs: Sequence[torch.Tensor], given: Attributes) -> torch.Tensor:
    """Returns the tensors of all replicas, one after another on a new first axis.

    Raises:
        Error: the model has several replicas.
    """
    check_one_replica("ReplicatedAllGather")
    return inputs[0].unsqueeze(0).clone()


def all_reduce(inputs: Sequence[torch.Tensor], given: Attributes) -> torch.Tensor:
    """Returns the sum over replicas; with `backwards`, the input, whose gradient is summed.

    Raises:
        Error: the model has several replicas, or this is no sum.
    """
    check_sum("ReplicatedAllReduceTP", given)
    check_one_replica("ReplicatedAllReduceTP")
    return inputs[0].clone()


def all_to_all(name: str) -> Callable[[Sequence[torch.Tensor], Attributes], torch.Tensor]:
    """Returns the operator of that name: piece s of the first axis goes to replica s."""

    def run(inputs: Sequence[torch.Tensor], given: Attributes) -> torch.Tensor:
        if inputs[0].dim() == 0:
            raise ValueError("a tensor without axes has no pieces; expected one for each replica")
        check_one_replica(name)
        return inputs[0].clone()

    return run
