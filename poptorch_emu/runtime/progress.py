"""The progress bar of a compilation, as in PopTorch; without a terminal, a plain line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")
_TOTAL = 100


class _Bar(tqdm):  # type: ignore[misc]
    """A progress bar without tqdm's thread that redraws stalled bars."""

    monitor_interval = 0


_is_hidden = False


def hide_progress_bars() -> None:
    """Hides progress bars in this process; compilation times are still measured."""
    global _is_hidden
    _is_hidden = True


def write_plain_line(seconds: float) -> None:
    """Writes the text of a full bar to stderr, for files and logs."""
    sys.stderr.write(f"Graph compilation: 100% in {seconds:.1f} s\n")


def counted(items: Iterator[T], count: int, description: str, is_shown: bool) -> Iterator[T]:
    """Yields the items of an iterator, with a progress bar that counts them.

    Args:
        items: iterator over the items.
        count: number of items.
        description: text before the bar.
        is_shown: whether a terminal shows the bar.
    """
    with counting(count, description, is_shown) as on_item:
        for item in items:
            yield item
            on_item()


@contextmanager
def counting(count: int, description: str, is_shown: bool) -> Iterator[Callable[[], None]]:
    """Yields a function to call after each of `count` items, which the bar counts.

    Args:
        count: number of items.
        description: text before the bar.
        is_shown: whether a terminal shows the bar.
    """
    disable = None if is_shown and not _is_hidden else True
    with _Bar(total=count, desc=description, disable=disable) as bar:
        yield bar.update


@contextmanager
def progress_bar(steps: Sequence[str], is_shown: bool) -> Iterator[Callable[[str], None]]:
    """Yields a function to call at the beginning of each step.

    Args:
        steps: names of all steps, in order.
        is_shown: whether the bar is shown.
    """
    is_shown = is_shown and not _is_hidden
    start_seconds = time.perf_counter()
    with _Bar(
        total=_TOTAL,
        desc="Graph compilation",
        bar_format="{desc}: {percentage:3.0f}%|{bar}| {n:.0f}/{total} [{elapsed}<{remaining}]",
        disable=None if is_shown else True,  # None disables the bar unless stderr is a terminal.
    ) as bar:

        def on_step(step: str) -> None:
            bar.update(_TOTAL * steps.index(step) // len(steps) - bar.n)

        yield on_step
        bar.update(_TOTAL - bar.n)
        if is_shown and bar.disable:
            write_plain_line(time.perf_counter() - start_seconds)
