"""Lets `import` find C++ for PopART whose first line names `cppimport`, as an empty module."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from poptorch_emu.companions.cppimport import imp_from_filepath

__all__: list[str] = []

_ENDINGS = (".cpp", ".c")


class _EmptyModule(Loader):
    def __init__(self, path: Path) -> None:
        self._path = path

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return imp_from_filepath(self._path, spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Does nothing, because `create_module` returns a complete module."""


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        stem = fullname.rpartition(".")[2]
        for folder in path if path is not None else sys.path:
            for ending in _ENDINGS:
                file = Path(folder or ".", stem + ending)
                if file.is_file() and _is_marked(file):
                    return ModuleSpec(fullname, _EmptyModule(file), origin=str(file))
        return None


def _is_marked(file: Path) -> bool:
    with file.open(encoding="utf-8", errors="replace") as text:
        return "cppimport" in text.readline()


sys.meta_path.append(_Finder())
