"""Table of the modules that `poptorch` and the names beside it stand for, and its import finder.

The finder returns the modules of this package themselves, so that
`poptorch.Options is poptorch_emu.Options`, and loads a module when it is imported. Nothing happens
before `poptorch_emu.emulator.install` is called.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing.spawn
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from poptorch_emu.executor.args_parser import registerGeometricCustomArgParsers
from poptorch_emu.names import foreign_libraries, foreign_modules

PACKAGE = "poptorch_emu"
_ADDED_LAYERS = f"{PACKAGE}.companions.ipu_tensorflow_addons.keras.layers"

# Name that programs import -> module of this package. Parts after the name (".Options") are kept.
MODULES = {
    "poptorch": PACKAGE,
    "poptorch.autocasting": f"{PACKAGE}.options.old_autocast",
    "poptorch._args_parser": f"{PACKAGE}.executor.args_parser",
    "poptorch._impl": f"{PACKAGE}.names.wrapping_names",
    "poptorch._logging": f"{PACKAGE}.names.log_names",
    "poptorch._poplar_executor": f"{PACKAGE}.executor.executor",
    "poptorch._utils": f"{PACKAGE}.executor.args_parser",
    "poptorch.poptorch_core": f"{PACKAGE}.names.native_core",
    "tensorflow.python.ipu": f"{PACKAGE}.keras.ipu",
    "tensorflow.python.keras.datasets": "keras.datasets",
    "tensorflow.python.ipu.horovod": f"{PACKAGE}.keras.ipu.distributed",
    "tensorflow.keras.ipu.layers": _ADDED_LAYERS,
    "tensorflow.keras.ipu.optimizers": f"{PACKAGE}.keras.ipu.optimizers",
    "keras.ipu.layers": _ADDED_LAYERS,
    "keras.ipu.optimizers": f"{PACKAGE}.keras.ipu.optimizers",
    "keras._tf_keras.keras.ipu.layers": _ADDED_LAYERS,
    "keras._tf_keras.keras.ipu.optimizers": f"{PACKAGE}.keras.ipu.optimizers",
    "tensorflow.keras.ipu": f"{PACKAGE}.keras.ipu.keras",
    "keras.ipu": f"{PACKAGE}.keras.ipu.keras",
    "keras._tf_keras.keras.ipu": f"{PACKAGE}.keras.ipu.keras",
    "gcipuinfo": f"{PACKAGE}.companions.gcipuinfo",
    "ipu_tensorflow_addons": f"{PACKAGE}.companions.ipu_tensorflow_addons",
    "libpvti": f"{PACKAGE}.companions.libpvti",
    "popart": f"{PACKAGE}.companions.popart",
    "popdist": f"{PACKAGE}.companions.popdist",
    "poptorch_experimental_addons": f"{PACKAGE}.companions.poptorch_experimental_addons",
    "pva": f"{PACKAGE}.companions.pva",
}

# Stand-ins that are used only if the package is not installed, because the real one is better.
STAND_INS = {
    "cppimport": f"{PACKAGE}.companions.cppimport",
    "examples_utils": f"{PACKAGE}.companions.examples_utils",
    "horovod": f"{PACKAGE}.companions.horovod",
}


def submodule(name: str) -> ModuleType | None:
    """Returns the module for `poptorch.<name>`, if the table has an entry for it."""
    target = MODULES.get(f"poptorch.{name}")
    return None if target is None else importlib.import_module(target)


class _Existing(Loader):
    """Loads an existing module of this package under another name."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._own_spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._target)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # `importlib.reload` needs this module's own spec, but the import system has replaced it.
        module.__spec__ = self._own_spec

    def load_module(self, fullname: str | None = None) -> ModuleType:
        """Returns the module; the name is optional, as with Python's own loaders of files."""
        return importlib.import_module(self._target)


class _Finder(MetaPathFinder):
    """Finds modules for the names of a table, and extends modules of other packages."""

    def __init__(self, table: dict[str, str]) -> None:
        self._table = table

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        extended = foreign_modules.extended_spec(fullname, path, target, self)
        if extended is not None:
            return extended
        name = self._target_of(fullname)
        found = None if name is None else importlib.util.find_spec(name)
        if name is None or found is None:
            return None
        is_package = found.submodule_search_locations is not None
        return ModuleSpec(fullname, _Existing(name), origin=found.origin, is_package=is_package)

    def _target_of(self, name: str) -> str | None:
        parts = name.split(".")
        for length in range(len(parts), 0, -1):
            target = self._table.get(".".join(parts[:length]))
            if target is not None:
                return ".".join([target, *parts[length:]])
        return None


class _InstallWhenUnpickled:
    """Installs the names in a new process, when its preparation data is unpickled there."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return install, ()


_preparation_data = multiprocessing.spawn.get_preparation_data


def _preparation_data_with_names(name: str) -> dict[str, Any]:
    return {**_preparation_data(name), PACKAGE: _InstallWhenUnpickled()}


def install() -> None:
    """Makes `import poptorch` and the modules beside it mean this package's (exact).

    The IPU's front end for TensorFlow is among them, and Keras is set to run on PyTorch. The
    names take precedence over installed packages, except those of `STAND_INS`, in this process,
    in processes that it starts with `multiprocessing`, and in Python programs that inherit its
    environment, because the folder `started` is added to PYTHONPATH. Libraries of custom
    operators that are missing, or need an IPU's SDK, load as empty libraries with a warning. A
    second call does nothing.

    Raises:
        RuntimeError: one of the names has been imported from elsewhere.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    for name in MODULES:
        present = sys.modules.get(name)
        if present is not None and not present.__name__.startswith(PACKAGE):
            raise RuntimeError(
                f"{name} has been imported already, from {getattr(present, '__file__', None)}. "
                "Call poptorch_emu.emulator.install() before anything imports it."
            )
    table = dict(MODULES)
    # The finder is installed before the search for modules, because the search calls import hooks
    # of other packages, which may call this function again.
    sys.meta_path.insert(0, _Finder(table))
    absent = [name for name in STAND_INS if importlib.util.find_spec(name) is None]
    table.update({name: STAND_INS[name] for name in absent})
    foreign_modules.prepare()
    # Installs the names early, because a started process imports the main program first.
    multiprocessing.spawn.get_preparation_data = _preparation_data_with_names
    _tell_started_programs()
    registerGeometricCustomArgParsers()
    foreign_libraries.install()


def _tell_started_programs() -> None:
    """Makes Python programs that inherit the environment find the names."""
    folder = str(Path(__file__).with_name("started"))
    others = os.environ.get("PYTHONPATH", "")
    if folder not in others.split(os.pathsep):
        os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{others}" if others else folder
