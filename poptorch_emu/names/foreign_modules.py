"""Extensions of other packages on import: `ipu` for Keras and TensorFlow, threads, and builds.

They are needed because a program may write `tf.keras.ipu` without importing a module of that name.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from poptorch_emu.names import foreign_builds

_FRONT_END = "poptorch_emu.keras.ipu"

# `tf.keras`, `tensorflow.keras` and `keras` are three modules, which share their submodules.
OWNERS_OF_IPU = {
    "tensorflow.python": _FRONT_END,
    "tensorflow.keras": f"{_FRONT_END}.keras",
    "keras": f"{_FRONT_END}.keras",
    "keras._tf_keras.keras": f"{_FRONT_END}.keras",
}
_TENSORFLOW = "tensorflow"
# The engine's threads wait for each other, so each needs a core that TensorFlow does not use.
_CORES_OF_ENGINE = 2


def prepare() -> None:
    """Sets variables that these packages read on import; variables that are set stay unchanged."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # Otherwise TensorFlow prints a note about these kernels, although it only prepares data here.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    for name in (*OWNERS_OF_IPU, _TENSORFLOW, *foreign_builds.MODULES):
        if name in sys.modules and _is_extended(name):
            extend(sys.modules[name])


def extend(module: ModuleType) -> None:
    """Adds the attributes that programs expect to a loaded module."""
    if module.__name__ == _TENSORFLOW:
        _leave_cores(module)
        return
    if module.__name__ in foreign_builds.MODULES:
        foreign_builds.extend(module)
        return
    target = OWNERS_OF_IPU[module.__name__]
    inner = vars(module).get("__getattr__")

    def find(name: str) -> Any:
        if name == "ipu":
            return importlib.import_module(target)
        if inner is not None:
            return inner(name)
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

    vars(module)["__getattr__"] = find


def extended_spec(
    fullname: str, path: Sequence[str] | None, target: ModuleType | None, caller: MetaPathFinder
) -> ModuleSpec | None:
    """Returns the spec of a package that is to be extended; `None` for all other packages.

    Args:
        fullname: full name of the package.
        path: search path of the parent package.
        target: module that is reloaded, if any.
        caller: finder that called; all other finders are asked.
    """
    if not _is_extended(fullname):
        return None
    others = (finder for finder in sys.meta_path if finder is not caller)
    specs = (finder.find_spec(fullname, path, target) for finder in others)
    spec = next(filter(None, specs), None)
    if spec is not None and spec.loader is not None:
        spec.loader = _ExtendingLoader(spec.loader)
    return spec


def _is_extended(name: str) -> bool:
    if name in foreign_builds.MODULES:
        return foreign_builds.is_real()
    return name in OWNERS_OF_IPU or name == _TENSORFLOW


class _ExtendingLoader(Loader):
    """Loads a module by its own loader, restores that loader, and extends the module."""

    def __init__(self, inner: Loader) -> None:
        self._inner = inner

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self._inner
        self._inner.exec_module(module)
        extend(module)


def _leave_cores(tensorflow: Any) -> None:
    """Limits TensorFlow's threads to leave cores for the engine, unless they have started."""
    threads = max(1, (os.cpu_count() or 1) - _CORES_OF_ENGINE)
    threading = tensorflow.config.threading
    try:
        if not threading.get_intra_op_parallelism_threads():
            threading.set_intra_op_parallelism_threads(threads)
        if not threading.get_inter_op_parallelism_threads():
            threading.set_inter_op_parallelism_threads(threads)
    except RuntimeError:  # TensorFlow's threads have already started.
        return
