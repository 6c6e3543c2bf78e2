"""`examples_utils`: the one of Graphcore's example helpers that loads custom operators."""

from __future__ import annotations

import ctypes
from pathlib import Path

from poptorch_emu.companions.cppimport import build_filepath
from poptorch_emu.names import foreign_libraries

__all__ = ["load_lib"]


def load_lib(cpp_path: str | Path, timeout: int = 300) -> ctypes.CDLL:
    """Returns an empty library for a file of C++ for PopART; compiles nothing (accepted).

    Args:
        cpp_path: path of the C++ file.
        timeout: accepted without effect, because nothing is compiled.

    Raises:
        ImportError: the file was not written for PopART.
    """
    path = build_filepath(cpp_path)
    foreign_libraries.install()
    return ctypes.CDLL(path)
