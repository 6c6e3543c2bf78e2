"""Finds the user's line: the innermost frame outside of PyTorch and this package.

Reports about the model's operations skip installed packages as well, because the call of a library
function says more than the library's own line. Errors name the line where they occur.
"""

from __future__ import annotations

import ast
import inspect
import sys
import sysconfig
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import TracebackType

import torch

_EXCLUDED = tuple(
    str(folder) for folder in (Path(torch.__file__).parent, Path(__file__).parents[2])
)
_COMMANDS = Path(sysconfig.get_path("scripts"))
_STANDARD_LIBRARY = str(Path(sys.modules["contextlib"].__file__ or "").parent)


def user_source() -> str:
    """Returns "file:line" of the user's code that is running, or "" if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if is_users_file(name):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def model_source() -> str:
    """Returns "file:line" of the innermost frame outside of installed code, or else `user_source`.

    Installed code is in `site-packages`, in Debian's `dist-packages`, or in the folder of commands.
    """
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if is_users_file(name) and not _is_installed(name):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return user_source()


@cache
def _is_installed(name: str) -> bool:
    path = Path(name)
    is_package = not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
    return is_package or path.parent == _COMMANDS


@cache
def is_users_file(name: str) -> bool:
    """Returns whether a file belongs neither to PyTorch, nor to this package, nor to Python."""
    is_standard = name.startswith(_STANDARD_LIBRARY) and "site-packages" not in name
    return not name.startswith(_EXCLUDED) and not is_standard and not name.startswith("<")


def links_of(trace: TracebackType | None) -> list[TracebackType]:
    """Returns the frames of a traceback with their lines, the innermost last."""
    links = []
    while trace is not None:
        links.append(trace)
        trace = trace.tb_next
    return links


def return_line(function: Callable[..., object]) -> str:
    """Returns "file:line" of the last `return` of a function; "" if its source is not available."""
    code = inspect.unwrap(function)
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return ""
    returns = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Return)]
    return f"{inspect.getfile(code)}:{first + max(returns) - 1}" if returns else ""
