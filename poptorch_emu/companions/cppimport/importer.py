"""The steps of `cppimport`'s build, without a compilation."""

from __future__ import annotations

import os
import re
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from poptorch_emu.names import foreign_libraries

__all__ = ["build_safely", "is_build_needed", "load_module", "setup_module_data"]

_OF_THE_SDK = re.compile(r"\b(popart|poplar|popops|poplin|snap)\b")


def setup_module_data(fullname: str, filepath: str | Path) -> dict[str, Any]:
    """Returns the paths of a module's C++ file and of the library of a build (accepted)."""
    path = os.path.abspath(filepath)
    name = fullname.rpartition(".")[2] + (sysconfig.get_config_var("EXT_SUFFIX") or ".so")
    folder = os.path.dirname(path)
    return {
        "fullname": fullname,
        "filepath": path,
        "filebasename": os.path.basename(path),
        "filedirname": folder,
        "ext_name": name,
        "ext_path": os.path.join(folder, name),
    }


def is_for_popart(filepath: str | Path) -> bool:
    """Returns whether C++ was written for PopART, which is so if it names the SDK (accepted)."""
    text = Path(filepath).read_text(encoding="utf-8", errors="replace")
    return _OF_THE_SDK.search(text) is not None


def is_build_needed(module_data: dict[str, Any]) -> bool:
    """Returns whether C++ must be compiled; C++ for PopART never must (accepted).

    Raises:
        ImportError: the file was not written for PopART.
    """
    build_safely(module_data["filepath"], module_data)
    return False


def build_safely(filepath: str | Path, module_data: dict[str, Any]) -> None:
    """Checks that C++ was written for PopART, and lets its library load as an empty one (accepted).

    Raises:
        ImportError: the file was not written for PopART.
    """
    if not is_for_popart(filepath):
        raise ImportError(
            f"{filepath} is not C++ for PopART, and cppimport is not installed, which would "
            "compile it. Install it: pip install cppimport"
        )
    foreign_libraries.expect(module_data["ext_path"], f"C++ for PopART is not compiled: {filepath}")


def load_module(module_data: dict[str, Any]) -> None:
    """Stores an empty module that has `sdk_version_hash` in `module_data["module"]` (accepted)."""
    module = ModuleType(module_data["fullname"])
    module.__file__ = module_data["ext_path"]
    vars(module)["sdk_version_hash"] = lambda: "poptorch_emu"
    module_data["module"] = module
