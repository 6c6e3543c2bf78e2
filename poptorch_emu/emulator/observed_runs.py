"""Runs of a wrapped model whose values are taken, with its inputs and weights as they are."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poptorch_emu.compile.compiler import Request
from poptorch_emu.errors import make_error
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.executor.executor_contents import (
    observed_program,
    optimizer_states,
    request_of,
)
from poptorch_emu.numbers.engine_run import ObservedGraph, Start, one_window, run_engine
from poptorch_emu.numbers.run_file import RunWriter, StoredRun, opened
from poptorch_emu.numbers.updates import start_weights
from poptorch_emu.options import Options
from poptorch_emu.runtime.progress import counting


@dataclass(frozen=True)
class Asked:
    """A model and the inputs of a call."""

    model: PoplarExecutor
    inputs: tuple[Any, ...]
    keywords: Mapping[str, Any]

    def window(self, options: Options | None = None) -> Request:
        """Returns a request for one window, with the model's options or others."""
        return one_window(request_of(self.model, self.inputs, self.keywords, options))

    def start(self, seed: int) -> Start:
        """Returns the present weights and the state of the optimiser, with a seed."""
        return Start(start_weights(self.model.model), optimizer_states(self.model), seed)


@dataclass(frozen=True)
class Observed:
    """A run on the engine, and what it was made of."""

    request: Request
    start: Start
    graph: ObservedGraph
    run: StoredRun
    folder: Path

    def progress(
        self, description: str, count: int
    ) -> AbstractContextManager[Callable[[], object]]:
        """Shows a bar, if the model's options have one."""
        return bar_of(self.request)(description, count)


def bar_of(
    request: Request,
) -> Callable[[str, int], AbstractContextManager[Callable[[], object]]]:
    """Returns what shows a bar, if the options have one."""
    is_shown = request.config.shows_progress_bar
    return lambda description, count: counting(count, description, is_shown)


@contextmanager
def observed_run(asked: Asked) -> Iterator[Observed]:
    """Runs a window; its values wait in a folder of temporary files until the context ends."""
    request = asked.window()
    start = asked.start(request.config.random_seed or 0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with RunWriter(folder / "ours") as writer:
            graph = write_run(asked.model, request, start, writer)
        with opened(folder / "ours", "this run") as run:
            yield Observed(request, start, graph, run, folder)


def write_run(
    model: PoplarExecutor, request: Request, start: Start, writer: RunWriter
) -> ObservedGraph:
    """Runs a window and writes all its values.

    Raises:
        Error: the model is one of several processes, or cannot be captured.
    """
    if request.config.num_processes > 1:
        raise make_error(
            f"The model is one of {request.config.num_processes} processes, of which none has all "
            "numbers. Compare it in one process, with Options.replicationFactor."
        )
    return run_engine(request, start, observed_program(model), writer, bar_of(request))
