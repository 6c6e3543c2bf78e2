"""A window on the engine whose values can be read as long as they are asked for."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from poptorch_emu.compile.compiler import Request
from poptorch_emu.numbers.engine_run import MakeObserved, ObservedGraph, Start, run_engine
from poptorch_emu.numbers.run import Progress, unseen
from poptorch_emu.numbers.run_file import RunWriter, StoredRun, opened


@dataclass(frozen=True)
class ObservedWindow:
    """A run on the engine, and what it was made of.

    Attributes:
        request: of the window.
        start: with what it started.
        graph: what ran.
        run: its values.
        folder: of temporary files.
        progress: shows how far runs are.
    """

    request: Request
    start: Start
    graph: ObservedGraph
    run: StoredRun
    folder: Path
    progress: Progress


@contextmanager
def observed_window(
    request: Request, start: Start, make: MakeObserved, progress: Progress = unseen
) -> Iterator[ObservedWindow]:
    """Runs a window; its values wait in a folder of temporary files until the context ends.

    Arguments and errors are those of `run_engine`.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with RunWriter(folder / "ours") as writer:
            graph = run_engine(request, start, make, writer, progress)
        with opened(folder / "ours", "this run") as run:
            yield ObservedWindow(request, start, graph, run, folder, progress)
