"""What is known about a model, to be looked at in a browser or kept in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from poptorch_emu.emulator.estimates import captured, chosen_system
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.report.page.model_reading import read_model
from poptorch_emu.report.page.page_file import to_html
from poptorch_emu.report.page.profile_view import run_of
from poptorch_emu.report.page.reading import EngineRun, Reading
from poptorch_emu.report.page.view_model import view_model
from poptorch_emu.report.profile_file import ProfileWriter, read_profile
from poptorch_emu.report.trace_file import to_trace


def page(
    model: PoplarExecutor,
    path: str | Path,
    *inputs: Any,
    system: str | None = None,
    **keywords: Any,
) -> Path:
    """Writes one HTML file that shows all that is known about `model`, and returns its path.

    It holds summary, timeline, memory, operations, graph and options (modelled), how long the last
    call took here, and with `Options.enableProfiling` what the engine ran when (exact). It opens
    without a network; `poptorch-emu view` compares two of them.

    Args:
        model: made by `trainingModel` or `inferenceModel`.
        path: of the file, which is written anew.
        inputs: as for a call; of a compiled model they may be left out.
        system: such as "bow-pod16"; by default the virtual system.
        keywords: inputs of a call that are given by name.

    Raises:
        Error: there is no such system, or the model cannot be captured.
        OSError: the file cannot be written.
    """
    view = view_model(_reading(model, inputs, system, keywords))
    written = Path(path)
    written.write_text(to_html([view]), encoding="utf-8")
    return written


def report(
    model: PoplarExecutor,
    directory: str | Path = ".",
    *inputs: Any,
    system: str | None = None,
    **keywords: Any,
) -> Path:
    """Writes `directory/<name of the model>/profile.pop`, and returns its path.

    It is the file that `Options.enableProfiling` writes while a model runs, made at once: the
    machine's figures (modelled), and the events of the engine if profiling is enabled (exact).
    `docs/profile_file.md` says what it holds; `poptorch-emu view` shows it.

    Args:
        model: made by `trainingModel` or `inferenceModel`.
        directory: for the folder of the model; made if it does not exist.
        inputs: as for a call; of a compiled model they may be left out.
        system: such as "bow-pod16"; by default the virtual system.
        keywords: inputs of a call that are given by name.

    Raises:
        Error: there is no such system, or the model cannot be captured.
    """
    reading = _reading(model, inputs, system, keywords)
    run = reading.run
    assert run is not None, "the reading of a model tells whether it ran"
    writer = ProfileWriter(Path(directory) / reading.name, reading.name, run.segments)
    writer.add_sections(view_model(reading, has_engine=False))
    running = model._on_device.measurement.profile
    if running is not None:
        running.flush()
        for table in read_profile(running.path).calls.values():
            writer.flush()
            writer.add_call(table)
    writer.close()
    return writer.path


def trace(
    model: PoplarExecutor,
    path: str | Path,
    *inputs: Any,
    system: str | None = None,
    **keywords: Any,
) -> Path:
    """Writes a trace for Perfetto or `chrome://tracing`, and returns its path.

    One process shows what IPUs would do in a window, in the machine's time (modelled); the other
    what the engine ran (exact), if profiling is enabled. Arguments are those of `page`.

    Raises:
        Error: there is no such system, or the model cannot be captured.
        OSError: the file cannot be written.
    """
    reading = _reading(model, inputs, system, keywords)
    written = Path(path)
    written.write_text(json.dumps(to_trace(reading)), encoding="utf-8")
    return written


def _reading(
    model: PoplarExecutor, inputs: tuple[Any, ...], system: str | None, keywords: dict[str, Any]
) -> Reading:
    request, inventory = captured(model, inputs, keywords)
    return read_model(request, inventory, chosen_system(system), _run(model))


def _run(model: PoplarExecutor) -> EngineRun:
    """Returns what ran: the events are there if profiling is enabled."""
    profile, seconds = model._on_device.measurement.profile, _step_seconds(model)
    if profile is None:
        return EngineRun((), (), step_seconds=seconds)
    profile.flush()
    return run_of(read_profile(profile.path), seconds)


def _step_seconds(model: PoplarExecutor) -> float | None:
    """Returns how long the last call took, from its first input to its last output."""
    counters = model.getPerfCounters()
    starts = [time for times in counters["input"] for time in times]
    ends = [time for times in counters["output_complete"] for time in times]
    return max(ends) - min(starts) if starts and ends else None
