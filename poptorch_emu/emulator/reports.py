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
    """Returns all that is known about `model`, for printing or a notebook (modelled).

    Arguments are those of `estimate`.

    Raises:
        Error: the system is unknown, or the model cannot be captured.
    """
    return ModelReport(view_model(content_of(model, inputs, keywords)))


def report(
    model: PoplarExecutor,
    *inputs: Any,
    directory: str | Path | None = None,
    **keywords: Any,
) -> Path:
    """Writes `<directory>/<name of the model>/profile.pop` and returns its path (modelled).

    `docs/profile_file.md` describes the file; `poptorch-emu view` converts it to a page.

    Args:
        model: wrapped model from `trainingModel` or `inferenceModel`.
        inputs: inputs as for `estimate`; so are `keywords`.
        directory: directory of the report, by default the current one. It may also be passed
            before the inputs: `report(model, directory, *inputs)`.

    Raises:
        Error: the system is unknown, or the model cannot be captured.
        OSError: the file cannot be written.
        TypeError: the model is not wrapped, or the directory is not a path.
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
    """Returns the contents of a `profile.pop` of `report` or `Options.enableProfiling` (exact).

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not a `profile.pop`, is damaged, or has another version.
    """
    return ModelReport(profile_view(Path(path)))


def trace(
    model: PoplarExecutor, *inputs: Any, path: str | Path | None = None, **keywords: Any
) -> Path:
    """Writes the timelines of the modelled IPUs and of the engine for Perfetto (modelled).

    Below the segments of an IPU are the blocks of the model and the operations. The engine's own
    timeline is exact; it is included if profiling is enabled.

    Args:
        model: wrapped model from `trainingModel` or `inferenceModel`.
        inputs: inputs as for `estimate`; so are `keywords`.
        path: path of the file, in Chrome's trace format. It may also be passed before the
            inputs: `trace(model, path, *inputs)`.

    Raises:
        Error: the system is unknown, or the model cannot be captured.
        OSError: the file cannot be written.
        TypeError: the model is not wrapped, or no path is given.
    """
    model = wrapped(model)
    written, inputs = path_and_inputs("trace", "path", path, inputs)
    text = json.dumps(to_trace(summary(model, *inputs, **keywords).view), allow_nan=False)
    write_named(written, text)
    return WrittenFile(written)
