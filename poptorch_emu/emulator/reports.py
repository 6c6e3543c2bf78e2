"""Reports of a model as values and as files for other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from poptorch_emu.emulator.given_values import path_and_inputs, wrapped
from poptorch_emu.emulator.page import content_of
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.report.model_report import ModelReport
from poptorch_emu.report.page.profile_view import profile_view
from poptorch_emu.report.page.view_model import view_model
from poptorch_emu.report.profile_file import FILE_NAME, write_profile_file
from poptorch_emu.report.trace_file import to_trace
from poptorch_emu.report.written_file import WrittenFile
from poptorch_emu.untrusted.files import write_named
from poptorch_emu.untrusted.texts import file_name


def summary(model: PoplarExecutor, *inputs: Any, **keywords: Any) -> ModelReport:
    """Returns what is known about `model`, to be printed or looked at in a notebook (modelled).

    Arguments are those of `estimate`.

    Raises:
        Error: there is no such system, or the model cannot be captured.
    """
    return ModelReport(view_model(content_of(model, inputs, keywords)))


def report(
    model: PoplarExecutor,
    *inputs: Any,
    directory: str | Path | None = None,
    **keywords: Any,
) -> Path:
    """Writes `<directory>/<name of the model>/profile.pop` and returns its path (modelled).

    `docs/profile_file.md` tells what it holds; `poptorch-emu view` makes a page of it.

    Args:
        model: made by `trainingModel` or `inferenceModel`.
        inputs: as for `estimate`; so are `keywords`.
        directory: by default the current one. It may also stand before the inputs, without its
            name: `report(model, directory, *inputs)`.

    Raises:
        Error: there is no such system, or the model cannot be captured.
        OSError: the file cannot be written.
        TypeError: the model is not wrapped, or the directory is no path.
    """
    model = wrapped(model)
    if directory is None and (not inputs or inputs[0] is None):
        directory, inputs = ".", inputs[1:]
    folder, inputs = path_and_inputs("report", "directory", directory, inputs)
    view = summary(model, *inputs, **keywords).view
    path = folder / file_name(view["name"], view["mode"]) / FILE_NAME
    write_profile_file(path, view)
    return WrittenFile(path)


def read_report(path: str | Path) -> ModelReport:
    """Returns what `report` or `Options.enableProfiling` wrote to a `profile.pop` (exact).

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no such file, is damaged, or is of another version.
    """
    return ModelReport(profile_view(Path(path)))


def trace(
    model: PoplarExecutor, *inputs: Any, path: str | Path | None = None, **keywords: Any
) -> Path:
    """Writes what IPUs would do, and what the engine did, by time, for Perfetto (modelled).

    The engine's own timeline is exact, and is there if profiling is enabled.

    Args:
        model: made by `trainingModel` or `inferenceModel`.
        inputs: as for `estimate`; so are `keywords`.
        path: of the file, in Chrome's trace format. It may also stand before the inputs, without
            its name: `trace(model, path, *inputs)`.

    Raises:
        Error: there is no such system, or the model cannot be captured.
        OSError: the file cannot be written.
        TypeError: the model is not wrapped, or no path is given.
    """
    model = wrapped(model)
    written, inputs = path_and_inputs("trace", "path", path, inputs)
    text = json.dumps(to_trace(summary(model, *inputs, **keywords).view), allow_nan=False)
    write_named(written, text)
    return WrittenFile(written)
