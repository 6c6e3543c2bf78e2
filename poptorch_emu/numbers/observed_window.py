"""A window on the engine with recorded values, which can be read until its context ends."""

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
    """A run on the engine, with its inputs and its graph.

    Attributes:
        request: model and inputs of the window.
        start: weights and state at the start of the window.
        graph: graph that the engine ran.
        run: recorded values.
        progress: display of the progress of further runs.
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
    """Runs a window; its values stay in a temporary file until the context ends.

    Arguments and errors are those of `run_engine`.
    """
    with KeptRun("this run") as run:
        graph = run_engine(request, start, make, run, progress)
        yield ObservedWindow(request, start, graph, run, progress)
