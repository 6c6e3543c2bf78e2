"""Datasets and helpers for the tests of the asynchronous accessor."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

import poptorch_emu as poptorch
from poptorch_emu.data.data_accessor import AsynchronousDataAccessor

FORK = poptorch.SharingStrategy.Fork


class Numbers(Dataset):  # type: ignore[type-arg]
    """Element i is tensor([i])."""

    def __init__(self, num_elements: int) -> None:
        self.num_elements = num_elements

    def __len__(self) -> int:
        return self.num_elements

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= self.num_elements:
            raise IndexError(index)
        return torch.tensor([index])


class FailingAt(Numbers):
    """Raises at one index."""

    def __init__(self, num_elements: int, index: int) -> None:
        super().__init__(num_elements)
        self.index = index

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.index:
            raise RuntimeError("out of numbers")
        return super().__getitem__(index)


class DyingAt(FailingAt):
    """Ends its process at one index without a message."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.index:
            os._exit(3)
        return Numbers.__getitem__(self, index)


class Logged(IterableDataset):  # type: ignore[type-arg]
    """Yields `epoch * 100 + i` and records each element in a file, which shows loading ahead."""

    def __init__(self, file: Path, num_elements: int) -> None:
        self.file, self.num_elements, self.epoch = file, num_elements, -1

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.epoch += 1
        for index in range(self.num_elements):
            with self.file.open("a") as log:
                log.write("x")
            yield torch.tensor([self.epoch * 100 + index])


class Point:
    """Holds tensors that only a parser finds."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, name: str) -> None:
        self.x, self.y, self.name = x, y, name


class PointParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct: Point) -> Iterator[torch.Tensor]:
        yield struct.x
        yield struct.y

    def reconstruct(self, original_structure: Point, tensor_iterator: Iterator[Any]) -> Point:
        return Point(next(tensor_iterator), next(tensor_iterator), original_structure.name)


class Points(Numbers):
    def __getitem__(self, index: int) -> Any:
        x = super().__getitem__(index)
        return Point(x, x * 10, "p")


Make = Callable[..., AsynchronousDataAccessor]


def values(accessor: Any) -> list[Any]:
    return [element.tolist() for element in accessor]


def children() -> set[int]:
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


def shared_memory_of(process: int | str = "self") -> set[str]:
    """Returns the files in /dev/shm that a process has mapped."""
    lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    return {line.split("/dev/shm/")[1].split()[0] for line in lines if "/dev/shm/" in line}


def wait_until(
    is_true: Callable[[], bool], limit_seconds: float = 10.0, pause_seconds: float = 0.01
) -> bool:
    end = time.monotonic() + limit_seconds
    while not is_true() and time.monotonic() < end:
        time.sleep(pause_seconds)
    return is_true()
