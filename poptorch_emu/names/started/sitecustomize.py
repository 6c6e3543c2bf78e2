"""What Python runs first in programs that a program with our names starts: they find them, too.

`aliases.install` puts this folder on PYTHONPATH. Nothing of the package is loaded before a program
imports one of the names; the `sitecustomize` that this one hides runs as well.
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

# Names that only this package answers; those of packages of others that it adds to theirs.
OWN_ROOTS = frozenset(
    {"gcipuinfo", "ipu_tensorflow_addons", "libpvti", "popart", "popdist", "poptorch"}
    | {"poptorch_experimental_addons", "pva"}
)
ADDED = frozenset({"keras.ipu", "tensorflow.keras.ipu", "tensorflow.python.ipu"})


class Installer(MetaPathFinder):
    """Installs all names when the first of them is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds what the name then means; `None` for other names, and without the package."""
        if fullname.partition(".")[0] not in OWN_ROOTS and fullname not in ADDED:
            return None
        with contextlib.suppress(ValueError):  # Another thread was first.
            sys.meta_path.remove(self)
        if importlib.util.find_spec("poptorch_emu") is None:
            return None
        importlib.import_module("poptorch_emu.names.aliases").install()
        return importlib.util.find_spec(fullname)


def run_hidden(name: str) -> None:
    """Runs the module of this name that is found without this folder, if there is one."""
    folder = os.path.dirname(__file__)
    spec = PathFinder.find_spec(name, [place for place in sys.path if place != folder])
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, Installer())
    run_hidden(__name__)
