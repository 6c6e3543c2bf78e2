"""Start-up code of Python programs that a program with our names starts; makes them find the names.

`aliases.install` adds this folder to PYTHONPATH. No module of the package is loaded until a program
imports one of the names. The `sitecustomize` module that this one hides also runs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

# Top-level names of this package's modules, and modules that it adds to other packages.
OWN_ROOTS = frozenset(
    {"gcipuinfo", "ipu_tensorflow_addons", "libpvti", "popart", "popdist", "poptorch"}
    | {"poptorch_experimental_addons", "pva"}
)
ADDED = frozenset({"keras.ipu", "tensorflow.keras.ipu", "tensorflow.python.ipu"})


class Installer(MetaPathFinder):
    """Installs all names when a program imports one of them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec after installing; `None` for other names, or without the package."""
        if fullname.partition(".")[0] not in OWN_ROOTS and fullname not in ADDED:
            return None
        with contextlib.suppress(ValueError):  # Another thread removed it first.
            sys.meta_path.remove(self)
        if importlib.util.find_spec("poptorch_emu") is None:
            return None
        importlib.import_module("poptorch_emu.names.aliases").install()
        return importlib.util.find_spec(fullname)


def run_hidden(name: str) -> None:
    """Runs the module of this name that Python would find without this folder, if there is one."""
    folder = os.path.dirname(__file__)
    spec = PathFinder.find_spec(name, [place for place in sys.path if place != folder])
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, Installer())
    run_hidden(__name__)
