"""Samples per second of `poptorch.DataLoader` in its modes, and of PyTorch's loader.

The first tables compare the loaders alone, over a cheap dataset so that the overhead is visible.
The last one adds a consumer that computes for as long as a batch takes to load, so that loading
ahead can at best halve the time. Candidates take turns. The tables show medians over the rounds, of
the speeds and of their ratios to the first candidate in the same round, because a change in the
machine's speed affects all candidates of a round.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import poptorch_emu as poptorch

BATCH_SIZE = 16
MODES = poptorch.DataLoaderMode
MATRIX = torch.rand(96, 96)


class Images(Dataset[torch.Tensor]):
    """Images that are cheap to create."""

    def __init__(self, num_elements: int) -> None:
        self.images = torch.randint(256, (num_elements, 3, 32, 32), dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.images[index].float() / 255


class Expensive(Dataset[torch.Tensor]):
    """Elements that cost as much time to create as one call of `compute`."""

    def __init__(self, num_elements: int, num_products: int) -> None:
        self.num_elements = num_elements
        self.num_products = num_products

    def __len__(self) -> int:
        return self.num_elements

    def __getitem__(self, index: int) -> torch.Tensor:
        compute(self.num_products)
        return torch.full((64,), float(index))


def compute(num_products: int) -> None:
    """Simulates the model, or the creation of an element."""
    for _ in range(num_products):
        MATRIX @ MATRIX


def samples_per_second(loader: Iterable[torch.Tensor], num_products: int) -> float:
    """Returns the samples per second of one epoch with `num_products` in each sample."""
    num_samples, start = 0, time.perf_counter()
    for batch in loader:
        compute(num_products * len(batch))
        num_samples += len(batch)
    return num_samples / (time.perf_counter() - start)


def emulated(dataset: Dataset[Any], mode: MODES, num_workers: int) -> poptorch.DataLoader:
    """Returns a loader whose asynchronous worker starts each epoch with an empty ring."""
    return poptorch.DataLoader(
        poptorch.Options().deviceIterations(2),
        dataset,
        BATCH_SIZE // 2,
        num_workers=num_workers,
        mode=mode,
        async_options={"load_indefinitely": False},
    )


def plain(dataset: Dataset[Any], num_workers: int) -> DataLoader[Any]:
    """Returns PyTorch's loader with the same settings."""
    return DataLoader(
        dataset,
        BATCH_SIZE,
        num_workers=num_workers,
        drop_last=True,
        persistent_workers=num_workers > 0,
    )


def compare(
    candidates: dict[str, Iterable[torch.Tensor]], num_products: int, rounds: int
) -> list[list[float]]:
    """Returns the speeds of each candidate, after one warm-up round."""
    results: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds + 1):
        for name, loader in candidates.items():
            results[name].append(samples_per_second(loader, num_products))
    return [values[1:] for values in results.values()]


def print_row(label: str, speeds: list[list[float]]) -> None:
    """Prints speeds, and their ratios to the first one."""
    cells = [f"{statistics.median(values):,.0f}" for values in speeds]
    for values in speeds[1:]:
        ratios = [value / first for value, first in zip(values, speeds[0], strict=True)]
        cells.append(f"{statistics.median(ratios):.2f}")
    print(f"| {label} | {' | '.join(cells)} |", flush=True)


def compare_alone(num_elements: int, rounds: int) -> None:
    """Prints the table of loaders alone."""
    print("Loader alone, samples/s\n")
    print("| workers | PyTorch | Sync | Async | Sync / PyTorch | Async / PyTorch |")
    print("|---|---:|---:|---:|---:|---:|")
    images = Images(num_elements)
    for num_workers in (0, 2):
        candidates = {
            "PyTorch": plain(images, num_workers),
            "Sync": emulated(images, MODES.Sync, num_workers),
            "Async": emulated(images, MODES.Async, num_workers),
        }
        print_row(str(num_workers), compare(candidates, 0, rounds))


def compare_overlapped(num_elements: int, rounds: int) -> None:
    """Prints the table of loading in parallel with equally expensive compute."""
    print("\nLoading and computing cost the same, samples/s\n")
    print("| products a sample | Sync | Async | AsyncRebatched | Async / Sync | Rebatched / Sync |")
    print("|---|---:|---:|---:|---:|---:|")
    for num_products in (10, 40):
        dataset = Expensive(num_elements, num_products)
        candidates = {mode.name: emulated(dataset, mode, 0) for mode in MODES}
        print_row(str(num_products), compare(candidates, num_products, rounds))


def main() -> None:
    """Prints two tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--elements", type=int, default=512)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    compare_alone(8 * arguments.elements, arguments.rounds)
    compare_overlapped(arguments.elements, arguments.rounds)


if __name__ == "__main__":
    main()
