"""The progress bar of a compilation, as PopTorch shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tqdm import tqdm

_TOTAL = 100


@contextmanager
def progress_bar(steps: Sequence[str], is_shown: bool) -> Iterator[Callable[[str], None]]:
    """Yields a function to be called at the beginning of each step.

    Args:
        steps: names of all steps, in order.
        is_shown: whether there is a bar at all.
    """
    with tqdm(
        total=_TOTAL,
        desc="Graph compilation",
        bar_format="{desc}: {percentage:3.0f}%|{bar}| {n:.0f}/{total} [{elapsed}<{remaining}]",
        disable=not is_shown,
    ) as bar:

        def on_step(step: str) -> None:
            bar.update(_TOTAL * steps.index(step) // len(steps) - bar.n)

        yield on_step
        bar.update(_TOTAL - bar.n)
