"""`examples_utils`: of Graphcore's helpers for examples the one that loads custom operators."""

from __future__ import annotations

import ctypes
from pathlib import Path

from poptorch_emu.companions.cppimport import build_filepath
from poptorch_emu.names import foreign_libraries

__all__ = ["load_lib"]


def load_lib(cpp_path: str | Path, timeout: int = 300) -> ctypes.CDLL:
    """Returns an empty library for a file of C++ for PopART; compiles nothing (accepted).

    Args:
        cpp_path: of the C++.
        timeout: has no effect, since nothing is waited for.

    Raises:
        ImportError: it was not written for PopART.
    """
    path = build_filepath(cpp_path)
    foreign_libraries.install()
    return ctypes.CDLL(path)
