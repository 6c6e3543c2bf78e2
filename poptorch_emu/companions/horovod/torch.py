"""`horovod.torch`: collectives between the processes that `popdist` or torch.distributed joined."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import pad

from poptorch_emu.distributed.connection import connect, connection
from poptorch_emu.distributed.launch_environment import read_launch

__all__ = [
    "Average",
    "Sum",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_parameters",
    "grouped_allreduce",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]


class _Reduction(IntEnum):
    Average = 0
    Sum = 1


Average = _Reduction.Average
Sum = _Reduction.Sum

_is_initialized = False


def init(*_: Any, **__: Any) -> None:
    """Joins the other processes of the launcher (exact).

    Raises:
        Error: another process is not found.
    """
    global _is_initialized
    launch = read_launch()
    if launch.num_instances > 1:
        connect(launch.index, launch.num_instances)
    _is_initialized = True


def shutdown() -> None:
    """Makes `is_initialized` return `False` again (accepted: the processes stay joined)."""
    global _is_initialized
    _is_initialized = False


def is_initialized() -> bool:
    """Returns whether `init` was called (exact)."""
    return _is_initialized


def rank() -> int:
    """Returns the index of this process among all processes (exact)."""
    return read_launch().index


def local_rank() -> int:
    """Returns the index of this process among those of this machine (exact)."""
    return read_launch().local_index


def size() -> int:
    """Returns the number of processes (exact)."""
    return read_launch().num_instances


def local_size() -> int:
    """Returns the number of processes on this machine (exact)."""
    return read_launch().num_on_host


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = None,
    op: Any = None,
    **_: Any,
) -> torch.Tensor:
    """Returns the mean over all processes, or the sum, as a new tensor (exact).

    Args:
        tensor: any shape; the mean of an integer tensor is rounded towards zero.
        average: `True` for the mean, `False` for the sum; by default `op` decides.
        name: accepted.
        compression: accepted.
        op: `Average` (the default) or `Sum`.
    """
    result = tensor.detach().clone().contiguous()
    group = _group()
    if group is not None:
        dist.all_reduce(result, group=group)
        is_mean = average if average is not None else op in (None, Average)
        if is_mean:
            mode = None if result.is_floating_point() else "trunc"
            result = torch.div(result, size(), rounding_mode=mode)
    return result


def grouped_allreduce(tensors: list[torch.Tensor], *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    """Returns the result of `allreduce` for each tensor (exact)."""
    return [allreduce(tensor, *args, **kwargs) for tensor in tensors]


def allgather(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """Returns the rows of all processes, concatenated; their numbers of rows may differ (exact).

    Args:
        tensor: shape [rows, ...]; all axes but the first have the same size in all processes.
    """
    group = _group()
    if group is None:
        return tensor.clone()
    content = io.BytesIO()
    torch.save(tensor.detach().cpu().clone(), content)
    sent = torch.frombuffer(content.getbuffer(), dtype=torch.uint8)
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(size())]
    dist.all_gather(lengths, torch.tensor([len(sent)]), group=group)
    longest = int(max(lengths))
    parts = [torch.empty(longest, dtype=torch.uint8) for _ in lengths]
    dist.all_gather(parts, pad(sent, (0, longest - len(sent))), group=group)
    files = [part[:length].numpy().tobytes() for part, length in zip(parts, lengths, strict=True)]
    # Someone on the network may have sent another object, whose unpickling would run code.
    return torch.cat([torch.load(io.BytesIO(file), weights_only=True) for file in files])


def broadcast(tensor: torch.Tensor, root_rank: int, *_: Any, **__: Any) -> torch.Tensor:
    """Returns the tensor of the process `root_rank` (exact).

    Raises:
        ValueError: no process has the rank `root_rank`.
    """
    _check_root(root_rank)
    result = tensor.detach().clone().contiguous()
    group = _group()
    if group is not None:
        dist.broadcast(result, src=root_rank, group=group)
    return result


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Overwrites the parameters of all processes with those of `root_rank`, in place (exact).

    Args:
        params: a `state_dict`, or pairs of name and tensor.
        root_rank: rank of the process whose parameters are kept.

    Raises:
        ValueError: no process has the rank `root_rank`.
    """
    _check_root(root_rank)
    if _group() is None:
        return
    pairs: Iterable[Any] = params.items() if isinstance(params, Mapping) else params
    with torch.no_grad():
        for _, tensor in sorted(pairs):
            if isinstance(tensor, torch.Tensor):
                tensor.copy_(broadcast(tensor, root_rank))


def _group() -> dist.ProcessGroup | None:
    """Returns the group of all processes; `None` if this is the only process."""
    if size() == 1:
        return None
    return (connection() or connect(rank(), size())).host_group()


def _check_root(root_rank: int) -> None:
    if not 0 <= root_rank < size():
        count = (
            "there is one process, of rank 0" if size() == 1 else f"there are {size()} processes"
        )
        raise ValueError(f"root_rank is {root_rank}, but {count}.")
