"""`cppimport`: C++ for PopART gets an empty module in place of a build; other C++ is refused."""

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
        filepath: of the C++.
        fullname: of the module; by default that of the file.

    Raises:
        ImportError: it was not written for PopART.
    """
    data = setup_module_data(fullname or Path(filepath).stem, str(filepath))
    build_safely(filepath, data)
    load_module(data)
    module: ModuleType = data["module"]
    return module


def build_filepath(filepath: str | Path, fullname: str | None = None) -> str:
    """Returns where the library of a file of C++ for PopART would be; builds nothing (accepted).

    Args:
        filepath: of the C++.
        fullname: of the module; by default that of the file.

    Raises:
        ImportError: it was not written for PopART.
    """
    data = setup_module_data(fullname or Path(filepath).stem, str(filepath))
    build_safely(filepath, data)
    return str(data["ext_path"])
