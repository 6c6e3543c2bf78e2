"""The page of a model: all that is known about it, for a browser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from poptorch_emu.emulator.estimates import planner_of
from poptorch_emu.emulator.given_values import described, path_and_inputs, wrapped
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.report.numerics_report import NumericsReport
from poptorch_emu.report.page.model_content import content_of_model
from poptorch_emu.report.page.page_content import EngineRun, PageContent
from poptorch_emu.report.page.page_file import to_html
from poptorch_emu.report.page.view_model import view_model
from poptorch_emu.report.written_file import WrittenFile
from poptorch_emu.untrusted.files import write_named


def page(
    model: PoplarExecutor,
    *inputs: Any,
    path: str | Path | None = None,
    numerics: NumericsReport | None = None,
    **keywords: Any,
) -> Path:
    """Writes one HTML file that shows all that is known about `model`, and returns its path.

    It holds summary, timeline, memory, operations, graph and options (modelled), the duration of
    the last call here, and with `Options.enableProfiling` the timeline of the engine (exact). It
    opens without a network; `poptorch-emu view` compares two pages. A notebook displays the page.

    Args:
        model: wrapped model from `trainingModel` or `inferenceModel`.
        inputs: arguments of a call; may be left out for a compiled model.
        path: path of the file, which is overwritten. It may also be passed before the inputs:
            `page(model, path, *inputs)`.
        numerics: report of `emulator.numerics`, for the panel of numbers.
        keywords: `system` and `io` as for `estimate`, and inputs by name.

    Raises:
        Error: the system is unknown, or the model cannot be captured.
        OSError: the file cannot be written.
        TypeError: the model is not wrapped, no path is given, or `numerics` has another type.
    """
    model = wrapped(model)
    if not isinstance(numerics, NumericsReport | None):
        raise TypeError(
            "numerics must be what emulator.numerics(model, *inputs) returns, but got "
            f"{described(numerics)}."
        )
    written, inputs = path_and_inputs("page", "path", path, inputs)
    content = replace(content_of(model, inputs, keywords), numerics=numerics)
    write_named(written, to_html([view_model(content)]))
    return WrittenFile(written)


def content_of(
    model: PoplarExecutor, inputs: tuple[Any, ...], keywords: Mapping[str, Any]
) -> PageContent:
    """Returns all that is known about `model`; arguments and errors are those of `page`."""
    model = wrapped(model)
    return content_of_model(planner_of(model, inputs, keywords), _run(model))


def _run(model: PoplarExecutor) -> EngineRun:
    """Returns the engine's last run, with its events if profiling is enabled."""
    measurement = model._on_device.measurement
    profile, seconds = measurement.profile, measurement.call_seconds
    return EngineRun((), (), step_seconds=seconds) if profile is None else profile.run(seconds)
