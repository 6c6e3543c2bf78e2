"""A ring of slots in memory that two processes share; each slot holds the tensors of one element.

The memory has no name in any file system, so that it is freed when no process maps it, however the
processes end. `ring_progress.py` decides which process may use a slot.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from multiprocessing.reduction import DupFd
from typing import Any

import torch

# Assumed: suits every vector load, and keeps two tensors in different cache lines.
_ALIGNMENT_BYTES = 64

_WORD_BYTES = 8


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
        """Bytes of the values."""
        return prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        """Returns the type as text, for example `float32[2, 3]`."""
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


@dataclass(frozen=True)
class RingLayout:
    """The layout of a ring: the tensors of each slot, and the 64-bit words before them."""

    num_slots: int
    tensors: tuple[TensorSpec, ...]
    num_words: int = 0

    @property
    def slot_bytes(self) -> int:
        """Distance between two slots."""
        return sum(_aligned(spec.num_bytes) for spec in self.tensors)

    @property
    def first_slot_bytes(self) -> int:
        """Offset of the first slot."""
        return _aligned(_WORD_BYTES * self.num_words)

    @property
    def num_bytes(self) -> int:
        """Size of the ring; at least 1, because a file of size 0 cannot be mapped."""
        return max(1, self.first_slot_bytes + self.num_slots * self.slot_bytes)


class RingFile:
    """The memory of a ring before it is mapped. It can be passed to a new process."""

    def __init__(self, descriptor: int | None = None) -> None:
        """Creates new memory, or takes ownership of `descriptor`."""
        # Unlike /dev/shm, which is small in containers, only the machine's memory limits it.
        self.descriptor: int = (
            os.memfd_create("poptorch_emu_ring") if descriptor is None else descriptor
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _received_file, (DupFd(self.descriptor),)

    def allocate(self, layout: RingLayout) -> None:
        """Allocates memory for a ring.

        Raises:
            OSError: the machine has too little memory.
        """
        # Otherwise too little memory would cause a bus error at the first write.
        os.posix_fallocate(self.descriptor, 0, layout.num_bytes)

    def close(self) -> None:
        """Closes the descriptor. The memory stays where it is mapped."""
        os.close(self.descriptor)


class Ring:
    """A mapped ring: its words, and its slots as tensors, which alias the shared memory.

    The memory stays mapped as long as one of these tensors exists.
    """

    def __init__(self, layout: RingLayout, file: RingFile) -> None:
        """Maps `file`, which can be closed afterwards."""
        memory = mmap.mmap(file.descriptor, layout.num_bytes)
        self.slots = [
            _tensors_at(memory, layout.tensors, layout.first_slot_bytes + slot * layout.slot_bytes)
            for slot in range(layout.num_slots)
        ]
        words = memoryview(memory)[: _WORD_BYTES * layout.num_words]
        self.words = words.cast("q")

    def slot(self, count: int) -> list[torch.Tensor]:
        """Returns the tensors of the slot of element number `count`, counted from 0."""
        return self.slots[count % len(self.slots)]


def _received_file(descriptor: Any) -> RingFile:
    return RingFile(descriptor.detach())


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
