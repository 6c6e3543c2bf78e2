"""Runs of a wrapped model whose values are recorded, with its present inputs and weights."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from poptorch_emu.compile.compiler import Request
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.executor.executor_contents import (
    observed_program,
    optimizer_states,
    request_of,
)
from poptorch_emu.numbers.engine_run import ObservedGraph, Start, one_window, run_engine
from poptorch_emu.numbers.observed_window import ObservedWindow, observed_window
from poptorch_emu.numbers.run import Progress, Sink
from poptorch_emu.numbers.updates import start_weights
from poptorch_emu.options import Options
from poptorch_emu.runtime.progress import counting


@dataclass(frozen=True)
class Asked:
    """A wrapped model and the inputs of a call."""

    model: PoplarExecutor
    inputs: tuple[Any, ...]
    keywords: Mapping[str, Any]

    def window(self, options: Options | None = None) -> Request:
        """Returns a request for one window, with the model's options or with `options`."""
        return one_window(request_of(self.model, self.inputs, self.keywords, options))

    def start(self, seed: int) -> Start:
        """Returns the present weights, the state of the optimiser, and a seed."""
        return Start(start_weights(self.model.model), optimizer_states(self.model), seed)


def observed_run(asked: Asked) -> AbstractContextManager[ObservedWindow]:
    """Runs a window; its values can be read until the context ends.

    Raises:
        Error: the model runs in several processes, or cannot be captured.
    """
    request = asked.window()
    start = asked.start(request.config.random_seed or 0)
    return observed_window(request, start, observed_program(asked.model), _progress(request))


def write_run(model: PoplarExecutor, request: Request, start: Start, sink: Sink) -> ObservedGraph:
    """Runs a window and writes all its values; errors are those of `observed_run`."""
    return run_engine(request, start, observed_program(model), sink, _progress(request))


def _progress(request: Request) -> Progress:
    """Returns a function that shows a progress bar, if the options enable it."""
    is_shown = request.config.shows_progress_bar
    return lambda description, count: counting(count, description, is_shown)
