"""Modules of the IPU's front end that have no counterpart.

Importing such a module works, because programs import more modules than they use. Calling anything
in it raises an error that says the way out.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

from poptorch_emu.errors import compiler_error

_LOOPS = "It is in the style of TensorFlow 1. Use IPUStrategy.run or fit."
_LAYERS = "Use the layers of keras.layers."
_TORCH = "Write the program for PyTorch, with poptorch.trainingModel."
_REPLICAS = "Use several replicas in one process: IPUConfig.auto_select_ipus."

_WAYS_OUT = {
    "application_compile_op": _TORCH,
    "autoshard": "Use model.set_pipeline_stage_assignment.",
    "dataset_benchmark": _LOOPS,
    "embedded_runtime": _TORCH,
    "ipu_compiler": _LOOPS,
    "ipu_estimator": _LOOPS,
    "ipu_multi_worker_strategy": _REPLICAS,
    "ipu_pipeline_estimator": _LOOPS,
    "ipu_run_config": _LOOPS,
    "ipu_session_run_hooks": _LOOPS,
    "layers": _LAYERS,
    "scopes": _LOOPS,
    "serving": _TORCH,
    "sharding": "Use model.set_pipeline_stage_assignment.",
    "ops.custom_ops": "Write the operator in PyTorch, and the program with poptorch.custom_op.",
    "ops.f8_ops": "Numbers of 8 bits are not offered. Use float16 or float32.",
    "ops.image_ops": "Compute it on the host, in the data set's map().",
    "ops.normalization_ops": _LAYERS,
    "ops.popfloat_cast_to_gfloat": "Use float16 or float32.",
    "ops.rnn_ops": _LAYERS,
    "ops.summary_ops": "Send values to an IPUOutfeedQueue, and write summaries on the host.",
}


def register(package: str) -> None:
    """Registers the refused modules below a package, so that they can be imported."""
    for path in _WAYS_OUT:
        name = f"{package}.{path}"
        module = _RefusedModule(name)
        module.__spec__ = ModuleSpec(name, None)
        sys.modules[name] = module
        parent, _, last = path.rpartition(".")
        for owner in {package, f"{package}.{parent}" if parent else package} & sys.modules.keys():
            setattr(sys.modules[owner], last, module)  # Modules of ipu.ops are ipu's, too.


class _RefusedModule(ModuleType):
    """A module that has every name; using one raises an error."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return _RefusedName(self.__name__, name)


class _RefusedName:
    """Represents a function or class of a refused module; any use raises an error."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise self._error()

    def __enter__(self) -> NoReturn:
        raise self._error()

    def __exit__(self, *error: Any) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _RefusedName(self._module, f"{self._name}.{name}")

    def _error(self) -> Exception:
        path = self._module.split(".ipu.", 1)[1]
        return compiler_error(
            f"ipu.{path}.{self._name} is not offered on Keras 3 (refused). {_WAYS_OUT[path]}"
        )
