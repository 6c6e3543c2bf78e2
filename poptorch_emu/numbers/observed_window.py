"""A window on the engine whose values can be read as long as they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from poptorch_emu.compile.compiler import Request
from poptorch_emu.numbers.engine_run import MakeObserved, ObservedGraph, Start, run_engine
from poptorch_emu.numbers.kept_run import KeptRun
from poptorch_emu.numbers.run import Progress, Run, unseen


@dataclass(frozen=True)
class ObservedWindow:
    """A run on the engine, and what it was made of.

    Attributes:
        request: of the window.
        start: with what it started.
        graph: what ran.
        run: its values.
        progress: shows how far runs are.
    """

    request: Request
    start: Start
    graph: ObservedGraph
    run: Run
    progress: Progress


@contextmanager
def observed_window(
    request: Request, start: Start, make: MakeObserved, progress: Progress = unseen
) -> Iterator[ObservedWindow]:
    """Runs a window; its values wait in a temporary file until the context ends.

    Arguments and errors are those of `run_engine`.
    """
    with KeptRun("this run") as run:
        graph = run_engine(request, start, make, run, progress)
        yield ObservedWindow(request, start, graph, run, progress)
