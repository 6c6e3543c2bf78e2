"""Reads environment variables as numbers, choices or objects, and queries the host's resources."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from poptorch_emu.errors import Error, compiler_error
from poptorch_emu.untrusted.texts import printable

_Choice = TypeVar("_Choice", bound=Enum)


def integer_of(variable: str, default: int = 0, at_least: int | None = None) -> int:
    """Returns the value of an environment variable, or `default` if it is not set.

    Args:
        variable: name of the variable.
        default: value if the variable is not set.
        at_least: smallest allowed value.

    Raises:
        Error: the value is not an integer or is too small.
    """
    text = os.environ.get(variable)
    if text is None:
        return default
    with contextlib.suppress(ValueError):
        value = int(text)
        if at_least is None or value >= at_least:
            return value
    limit = "" if at_least is None else f" from {at_least} on"
    raise _error(variable, f"an integer{limit}", text)


def choice_of(variable: str, choices: type[_Choice], default: _Choice) -> _Choice:
    """Returns the choice that an environment variable names, or `default` if it is not set.

    Raises:
        Error: the value is not one of the choices.
    """
    text = os.environ.get(variable)
    if not text:
        return default
    known = [choice.value for choice in choices]
    if text not in known:
        raise _error(variable, f"one of {known}", text)
    return choices(text)


def object_of(variable: str, example: str) -> dict[str, Any]:
    """Returns the JSON object in an environment variable, or an empty one if it is not set.

    Args:
        variable: name of the variable.
        example: valid value of the variable, for the message.

    Raises:
        Error: the value is not a JSON object.
    """
    text = os.environ.get(variable)
    if not text:
        return {}
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(text)
        if isinstance(value, dict):
            return value
    raise _error(variable, f"a JSON object such as {example}", text)


def _error(variable: str, expected: str, text: str) -> Error:
    return compiler_error(
        f"The environment variable {variable} must be {expected}, not '{printable(text)}'.",
        type="std::invalid_argument",
    )


def free_memory_bytes() -> int | None:
    """Returns the host's memory that is available to new work; `None` if it is not known."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    of_name = dict(line.split(":", 1) for line in lines if ":" in line)
    text = of_name.get("MemAvailable")
    return None if text is None else int(text.split()[0]) * 1024


@functools.cache
def processor(field: str) -> str | None:
    """Returns a field of the host's first processor; `None` if it is not known.

    Args:
        field: name of the field in Linux, such as "vendor_id" or "flags".
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    fields = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in fields if name.strip() == field), None)
