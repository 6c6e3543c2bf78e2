"""Extension of an installed `cppimport` that skips the build of C++ for PopART.

The package still builds all other C++ of a program.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

_STAND_IN = "poptorch_emu.companions.cppimport"
_IMPORTER, _HOOK = "cppimport.importer", "cppimport.import_hook"
MODULES = (_IMPORTER, _HOOK)


def is_real() -> bool:
    """Returns whether `cppimport` is the real package and not our stand-in."""
    package = sys.modules.get("cppimport")
    return package is not None and package.__name__ == "cppimport"


def extend(module: ModuleType) -> None:
    """Changes a loaded module of the package so that it skips C++ for PopART."""
    if module.__name__ == _HOOK:
        # Our finder is appended, so that it is asked only if the package finds nothing.
        importlib.import_module(f"{_STAND_IN}.import_hook")
        return
    stand_in = importlib.import_module(f"{_STAND_IN}.importer")
    for name in ("build_safely", "is_build_needed", "load_module"):
        vars(module)[name] = _chosen_by_file(stand_in, name, vars(module)[name])


def _chosen_by_file(stand_in: Any, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a step of a build that skips C++ for PopART; its last argument names the file."""
    empty = getattr(stand_in, name)

    def step(*arguments: Any) -> Any:
        is_foreign = stand_in.is_for_popart(arguments[-1]["filepath"])
        return empty(*arguments) if is_foreign else real(*arguments)

    return step
