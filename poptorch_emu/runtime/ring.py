"""A ring of slots in memory that two processes share; each slot holds the tensors of one element.

The memory has no name in any file system: it is gone when nobody maps it any more, however its
users end. Who may touch which slot when is not known here.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch

# Assumed: enough for every vector load and for not sharing a cache line.
_ALIGNMENT_BYTES = 64


@dataclass(frozen=True)
class TensorSpec:
    """Shape and type of one tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorSpec:
        """Returns shape and type of `tensor`."""
        return cls(tuple(tensor.shape), tensor.dtype)

    @property
    def num_bytes(self) -> int:
        """How much memory the values take."""
        return prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        """Returns, say, `float32[2, 3]`."""
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


@dataclass(frozen=True)
class RingLayout:
    """What each of the slots holds."""

    num_slots: int
    tensors: tuple[TensorSpec, ...]

    @property
    def slot_bytes(self) -> int:
        """Distance between two slots."""
        return sum(_aligned(spec.num_bytes) for spec in self.tensors)

    @property
    def num_bytes(self) -> int:
        """Size of the ring; at least 1, because nothing of size 0 can be mapped."""
        return max(1, self.num_slots * self.slot_bytes)


class Ring:
    """The slots as tensors, which alias the shared memory.

    The memory stays mapped as long as one of these tensors lives.
    """

    def __init__(self, layout: RingLayout, file: int) -> None:
        """Maps `file`, a descriptor from `new_file`, which can be closed afterwards."""
        memory = mmap.mmap(file, layout.num_bytes)
        self.slots = [
            _tensors_at(memory, layout.tensors, slot * layout.slot_bytes)
            for slot in range(layout.num_slots)
        ]

    def slot(self, count: int) -> list[torch.Tensor]:
        """Returns the tensors of the slot that the `count`-th element uses, from 0."""
        return self.slots[count % len(self.slots)]


def new_file(layout: RingLayout) -> int:
    """Returns a descriptor of new memory, which the caller closes.

    Raises:
        OSError: there is not that much memory.
    """
    # Unlike /dev/shm, which is small in containers, it is limited by the memory alone.
    file = os.memfd_create("poptorch_emu_ring")
    try:
        # Without this, too little memory would show as a bus error at the first write.
        os.posix_fallocate(file, 0, layout.num_bytes)
    except BaseException:
        os.close(file)
        raise
    return file


def _tensors_at(
    memory: mmap.mmap, specs: Sequence[TensorSpec], offset_bytes: int
) -> list[torch.Tensor]:
    tensors = []
    for spec in specs:
        tensors.append(_tensor_at(memory, spec, offset_bytes))
        offset_bytes += _aligned(spec.num_bytes)
    return tensors


def _tensor_at(memory: mmap.mmap, spec: TensorSpec, offset_bytes: int) -> torch.Tensor:
    if not spec.num_bytes:
        return torch.empty(spec.shape, dtype=spec.dtype)
    flat = torch.frombuffer(memory, dtype=spec.dtype, count=prod(spec.shape), offset=offset_bytes)
    return flat.view(spec.shape)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
