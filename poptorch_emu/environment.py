"""Reads numbers and choices from environment variables, and asks the host what it has."""

from __future__ import annotations

import functools
import os
from enum import Enum
from pathlib import Path
from typing import TypeVar

from poptorch_emu.errors import compiler_error

_Choice = TypeVar("_Choice", bound=Enum)


def integer_of(variable: str, default: int = 0) -> int:
    """Returns the value of an environment variable, or `default` where it is not set.

    Raises:
        Error: it is not an integer.
    """
    text = os.environ.get(variable)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise compiler_error(
            f"The environment variable {variable} must be an integer, not '{text}'.",
            type="std::invalid_argument",
        ) from None


def choice_of(variable: str, choices: type[_Choice], default: _Choice) -> _Choice:
    """Returns the choice that an environment variable names, or `default` where it is not set.

    Raises:
        Error: it names none of them.
    """
    text = os.environ.get(variable)
    if text is None:
        return default
    known = [choice.value for choice in choices]
    if text not in known:
        raise compiler_error(
            f"The environment variable {variable} must be one of {known}, not '{text}'.",
            type="std::invalid_argument",
        )
    return choices(text)


def free_memory_bytes() -> int | None:
    """Returns how much memory the host can give to new work; `None` where it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    of_name = dict(line.split(":", 1) for line in lines if ":" in line)
    text = of_name.get("MemAvailable")
    return None if text is None else int(text.split()[0]) * 1024


@functools.cache
def processor(field: str) -> str | None:
    """Returns what the host says of its first processor; `None` where it does not say.

    Args:
        field: a name of Linux, such as "vendor_id" or "flags".
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    fields = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in fields if name.strip() == field), None)
