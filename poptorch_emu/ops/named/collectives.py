"""Built-in operators that exchange values between replicas inside forward and backward.

With one replica they copy; with several, each becomes an operator of `ir/exchange.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.ir.exchange import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, OWN_PIECE
from poptorch_emu.ops.named.named_operator import Attributes
from poptorch_emu.trace.places import blocks
from poptorch_emu.trace.recording import regions

# Value of `add` in PopART's enumeration of collective operators.
_ADD = 0


def check_sum(name: str, given: Mapping[str, Any]) -> None:
    """Refuses a reduction other than a sum.

    Raises:
        Error: the attribute `__collectiveOperator` is not `add`.
    """
    if given["__collectiveOperator"] != _ADD:
        raise compiler_error(
            f"{name} has the operator {given['__collectiveOperator']}; only {_ADD} (a sum) is "
            "supported."
        )


def replicas_of(name: str, given: Attributes) -> int:
    """Returns the number of replicas that take part in an exchange, which are all of the model.

    Raises:
        Error: the exchange is between some replicas only, inside a loop or a branch, or in
            inference with several processes.
    """
    if not blocks.is_tracing():
        return 1
    state = regions.current()
    count = state.num_replicas
    if state.is_apart:
        raise compiler_error(
            f"{name} is not supported in inference of several processes, each of which computes on "
            "its own. Infer in one process, with all replicas in replicationFactor."
        )
    groups = given.get("__collectiveReplicaGrouping")
    if groups and list(groups) != [count, 1, count]:
        raise compiler_error(
            f"{name} is between groups of replicas {list(groups)} (all, stride, size of a group); "
            f"only all {count} replicas of the model can exchange, which is {[count, 1, count]}."
        )
    if count > 1 and state.recorder.is_in_region:
        raise compiler_error(
            f"{name} over {count} replicas is inside a loop or a branch, where replicas cannot "
            "meet. Exchange before or after it, or write the loop as a Python loop."
        )
    return count


def all_gather(inputs: Sequence[torch.Tensor], given: Attributes) -> Any:
    """Returns the tensors of all replicas, stacked on a new first axis.

    Raises:
        Error: replicas cannot exchange values here.
    """
    count = replicas_of("ReplicatedAllGather", given)
    if count == 1:
        return inputs[0].unsqueeze(0).clone()
    return _AllGather.apply(inputs[0], count)  # type: ignore[no-untyped-call]


def all_reduce(inputs: Sequence[torch.Tensor], given: Attributes) -> Any:
    """Returns the sum over replicas; with `backwards`, the input, whose gradient is summed.

    Raises:
        Error: replicas cannot exchange values here, or the reduction is not a sum.
    """
    check_sum("ReplicatedAllReduceTP", given)
    count = replicas_of("ReplicatedAllReduceTP", given)
    if count == 1:
        return inputs[0].clone()
    function = _SummedGradient if given["backwards"] else _AllReduce
    return function.apply(inputs[0], count)  # type: ignore[no-untyped-call]


def all_reduce_without_gradient(inputs: Sequence[torch.Tensor], given: Attributes) -> list[Any]:
    """Returns the sum of each input over replicas.

    Raises:
        Error: replicas cannot exchange values here, the reduction is not a sum, or backward runs.
    """
    check_sum("ReplicatedAllReduce", given)
    count = replicas_of("ReplicatedAllReduce", given)
    if count == 1:
        return [value.clone() for value in inputs]
    return [_Sum.apply(value, count) for value in inputs]  # type: ignore[no-untyped-call]


def all_to_all(name: str) -> Callable[[Sequence[torch.Tensor], Attributes], Any]:
    """Returns the operator of this name, which sends piece s of the first axis to replica s."""

    def run(inputs: Sequence[torch.Tensor], given: Attributes) -> Any:
        (x,) = inputs
        if x.dim() == 0:
            raise ValueError("a tensor without axes has no pieces; expected one for each replica")
        count = replicas_of(name, given)
        if count == 1:
            return x.clone()
        if x.size(0) % count:
            raise ValueError(
                f"the first axis of {list(x.shape)} cannot be cut into a piece for each of "
                f"{count} replicas"
            )
        return _AllToAll.apply(x, count)  # type: ignore[no-untyped-call]

    return run


class _AllGather(torch.autograd.Function):
    """A gather whose gradient is each replica's own slice."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, count: int) -> torch.Tensor:
        ctx.count = count
        gathered: torch.Tensor = ALL_GATHER(x, count)
        return gathered

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return OWN_PIECE(gradients[0], ctx.count), None


class _AllReduce(torch.autograd.Function):
    """A sum whose gradient passes unchanged."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, count: int) -> torch.Tensor:
        total: torch.Tensor = ALL_REDUCE(x, count)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


class _SummedGradient(torch.autograd.Function):
    """A value whose gradient is added up over the replicas."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, count: int) -> torch.Tensor:
        ctx.count = count
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ALL_REDUCE(gradients[0], ctx.count), None


class _Sum(_AllReduce):
    """A sum without a gradient."""

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        raise compiler_error(
            "ReplicatedAllReduce has no gradient, but the model trains through it. Use "
            "ReplicatedAllReduceTP, which has one."
        )


class _AllToAll(torch.autograd.Function):
    """An exchange of pieces whose gradients are sent back the same way."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, count: int) -> torch.Tensor:
        ctx.count = count
        pieces: torch.Tensor = ALL_TO_ALL(x, count)
        return pieces

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ALL_TO_ALL(gradients[0], ctx.count), None
