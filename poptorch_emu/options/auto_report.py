"""The options of Poplar's reports: what `POPLAR_ENGINE_OPTIONS` and `Options` ask for."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from poptorch_emu.errors import make_error

_VARIABLE = "POPLAR_ENGINE_OPTIONS"
# Any of these makes a report; which parts it has does not depend on them.
_SWITCHES = (
    "autoReport.all",
    "autoReport.outputGraphProfile",
    "autoReport.outputExecutionProfile",
)


def report_directory(engine_options: Mapping[str, str]) -> str | None:
    """Returns where a report is to be written, `None` if none is asked for.

    Args:
        engine_options: of the user's `Options`; the environment wins over them.

    Raises:
        Error: the environment's options are no JSON object.
    """
    environment = _environment_options()
    asked = {**engine_options, **environment}
    is_parted = any(_is_true(environment.get(name)) for name in _SWITCHES)
    if not is_parted and not _is_true(asked.get("autoReport.all")):
        return None
    return str(asked.get("autoReport.directory", "."))


def _is_true(value: object) -> bool:
    return str(value).lower() == "true"


def _environment_options() -> dict[str, object]:
    text = os.environ.get(_VARIABLE, "")
    if "autoReport" not in text:
        return {}  # None of the other options means anything here.
    try:
        options = json.loads(text)
    except json.JSONDecodeError:
        options = None
    if not isinstance(options, dict):
        raise make_error(
            f"{_VARIABLE} is '{text}', which is no JSON object. Give one such as "
            '{"autoReport.all": "true", "autoReport.directory": "./report"}.'
        )
    return options
