"""Finds the user's line: the innermost frame that is neither PyTorch's nor this package's."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import torch

_EXCLUDED = tuple(
    str(folder) for folder in (Path(torch.__file__).parent, Path(__file__).parent.parent)
)
_STANDARD_LIBRARY = str(Path(sys.modules["contextlib"].__file__ or "").parent)


def user_source() -> str:
    """Returns "file:line" of the user's code that is running, or "" when there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if is_users_file(name):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


@cache
def is_users_file(name: str) -> bool:
    """Returns whether a file is neither PyTorch's, nor this package's, nor Python's."""
    is_standard = name.startswith(_STANDARD_LIBRARY) and "site-packages" not in name
    return not name.startswith(_EXCLUDED) and not is_standard and not name.startswith("<")
