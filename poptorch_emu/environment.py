"""Reads numbers from environment variables."""

from __future__ import annotations

import os

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
