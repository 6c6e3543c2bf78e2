"""Options of Poplar's reports, from `POPLAR_ENGINE_OPTIONS` and `Options`."""

from __future__ import annotations

import os
from collections.abc import Mapping

from poptorch_emu.environment import object_of
from poptorch_emu.errors import make_error

_VARIABLE = "POPLAR_ENGINE_OPTIONS"
# Each of these switches enables a report; its contents are the same for all of them.
_SWITCHES = (
    "autoReport.all",
    "autoReport.outputGraphProfile",
    "autoReport.outputExecutionProfile",
)
_DIRECTORY = "autoReport.directory"
_EXAMPLE = '{"autoReport.all": "true", "autoReport.directory": "./report"}'


def report_directory(engine_options: Mapping[str, str]) -> str | None:
    """Returns the directory of the report that was requested; `None` if there is none.

    Args:
        engine_options: engine options of the user's `Options`; the environment overrides them.

    Raises:
        Error: the environment's options are not a JSON object, or a value is invalid.
    """
    environment = _environment_options()
    asked = {**engine_options, **environment}
    is_parted = any(_is_true(environment.get(name)) for name in _SWITCHES)
    if not is_parted and not _is_true(asked.get("autoReport.all")):
        return None
    return str(asked.get(_DIRECTORY, "."))


def _is_true(value: object) -> bool:
    return str(value).lower() == "true"


def _environment_options() -> dict[str, object]:
    # Options other than those of reports are ignored.
    if "autoReport" not in os.environ.get(_VARIABLE, ""):
        return {}
    options = object_of(_VARIABLE, _EXAMPLE)
    for name in (*_SWITCHES, _DIRECTORY):
        value = options.get(name, "true")
        is_known = name == _DIRECTORY or str(value).lower() in ("true", "false")
        if not is_known or not isinstance(value, (str, bool)):
            raise make_error(
                f"{_VARIABLE} gives {name} the value {value!r}. Give a value as in {_EXAMPLE}."
            )
    return options
