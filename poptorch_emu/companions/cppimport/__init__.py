"""`cppimport`: imports C++ that was written for PopART as an empty module; rejects other C++."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from poptorch_emu.companions.cppimport.importer import (
    build_safely,
    load_module,
    setup_module_data,
)

__all__ = ["build_filepath", "imp_from_filepath"]


def imp_from_filepath(filepath: str | Path, fullname: str | None = None) -> ModuleType:
    """Returns an empty module for a file of C++ that was written for PopART (accepted).

    Args:
        filepath: path of the C++ file.
        fullname: name of the module; by default the name of the file.

    Raises:
        ImportError: the file was not written for PopART.
    """
    data = setup_module_data(fullname or Path(filepath).stem, str(filepath))
    build_safely(filepath, data)
    load_module(data)
    module: ModuleType = data["module"]
    return module


def build_filepath(filepath: str | Path, fullname: str | None = None) -> str:
    """Returns the path that the library of C++ for PopART would have; builds nothing (accepted).

    Args:
        filepath: path of the C++ file.
        fullname: name of the module; by default the name of the file.

    Raises:
        ImportError: the file was not written for PopART.
    """
    data = setup_module_data(fullname or Path(filepath).stem, str(filepath))
    build_safely(filepath, data)
    return str(data["ext_path"])
