"""`horovod.torch` for one process: what is gathered or reduced over all is what this one has."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import torch

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
    """Gets ready (accepted: there is nobody to connect to)."""
    global _is_initialized
    _is_initialized = True


def shutdown() -> None:
    """Takes back `init` (accepted)."""
    global _is_initialized
    _is_initialized = False


def is_initialized() -> bool:
    """Returns whether `init` was called (exact)."""
    return _is_initialized


def rank() -> int:
    """Returns the number of this process (exact for one process)."""
    return 0


def local_rank() -> int:
    """Returns its number on this machine (exact for one process)."""
    return 0


def size() -> int:
    """Returns how many processes there are (exact for one process)."""
    return 1


def local_size() -> int:
    """Returns how many are on this machine (exact for one process)."""
    return 1


def allreduce(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """Returns the mean or the sum over all processes, a new tensor (exact for one process)."""
    return tensor.clone()


def grouped_allreduce(tensors: list[torch.Tensor], *_: Any, **__: Any) -> list[torch.Tensor]:
    """Returns the same of each tensor (exact for one process)."""
    return [allreduce(tensor) for tensor in tensors]


def allgather(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """Returns the rows of all processes one after the other (exact for one process)."""
    return tensor.clone()


def broadcast(tensor: torch.Tensor, root_rank: int, *_: Any, **__: Any) -> torch.Tensor:
    """Returns what the process `root_rank` has (exact for one process).

    Raises:
        ValueError: there is no such process.
    """
    _check_root(root_rank)
    return tensor.clone()


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Gives all processes the parameters of `root_rank` (exact for one process).

    Raises:
        ValueError: there is no such process.
    """
    _check_root(root_rank)


def _check_root(root_rank: int) -> None:
    if root_rank != 0:
        raise ValueError(f"root_rank is {root_rank}, but there is one process, of rank 0.")
