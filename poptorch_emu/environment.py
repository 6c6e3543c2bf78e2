"""Reads numbers from environment variables."""

from __future__ import annotations

import os
from pathlib import Path

from poptorch_emu.errors import compiler_error


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


def free_memory_bytes() -> int | None:
    """Returns how much memory the host can give to new work; `None` where it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    of_name = dict(line.split(":", 1) for line in lines if ":" in line)
    text = of_name.get("MemAvailable")
    return None if text is None else int(text.split()[0]) * 1024
