"""What programs of Keras 2 write that Keras 3 no longer takes, where it has a counterpart."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
from keras.src.backend import config as keras_config

from poptorch_emu.options.base import note_accepted

# Where the user's own files of Keras's data sets are.
DATASETS_VARIABLE = "POPTORCH_EMU_DATASETS"

_OPTIMIZERS = (
    "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lion", "Nadam",
    "RMSprop", "SGD",
)  # fmt: skip
_DATASETS = (
    "boston_housing", "california_housing", "cifar10", "cifar100", "fashion_mnist", "imdb",
    "mnist", "reuters",
)  # fmt: skip
_OF_LOADERS = ("max_queue_size", "workers", "use_multiprocessing")


@functools.cache
def install() -> None:
    """Makes Keras take them, once in a process."""
    for optimizer in _OPTIMIZERS:
        kind = getattr(keras.optimizers, optimizer)
        kind.__init__ = _with_old_arguments(kind.__init__)
    keras.optimizers.Optimizer.lr = property(
        lambda optimizer: optimizer.learning_rate,
        lambda optimizer, rate: setattr(optimizer, "learning_rate", rate),
    )
    tf_keras = importlib.import_module("keras._tf_keras.keras")
    for root in (keras, tf_keras):
        root.layers.experimental = _experimental_layers()
        root.mixed_precision.experimental = _experimental_policies()
    for optimizer in _OPTIMIZERS:
        setattr(tf_keras.optimizers.legacy, optimizer, getattr(keras.optimizers, optimizer))
    for dataset in _DATASETS:
        module: Any = importlib.import_module(f"keras.src.datasets.{dataset}")
        module.get_file = _finding_file(dataset, module.get_file)


def compile_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of `compile` by the names that Keras 3 has."""
    given = dict(given)
    if "experimental_steps_per_execution" in given:
        given["steps_per_execution"] = given.pop("experimental_steps_per_execution")
    return given


def run_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of `fit` and its like without those that only prepared data."""
    for name in _OF_LOADERS:
        if name in given:
            note_accepted(f"fit({name}=...)")
    return {name: value for name, value in given.items() if name not in _OF_LOADERS}


def _with_old_arguments(build: Callable[..., None]) -> Callable[..., None]:
    """Returns the constructor of an optimiser that takes arguments of Keras 2, too."""

    @functools.wraps(build)
    def build_by_old_names(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        if "lr" in kwargs:
            kwargs["learning_rate"] = kwargs.pop("lr")
        name = type(optimizer).__name__
        if kwargs.get("decay") is not None and kwargs.pop("decay"):
            raise ValueError(
                f"{name}(decay=...) has no meaning in Keras 3, which would ignore it. Pass "
                f"{name}(keras.optimizers.schedules.InverseTimeDecay(rate, 1, decay))."
            )
        if kwargs.get("gradient_transformers") is not None:
            raise ValueError(
                f"{name}(gradient_transformers=...) is not taken by Keras 3. Use clipnorm or "
                "global_clipnorm, or change gradients in a loop that IPUStrategy.run runs."
            )
        kwargs.pop("gradient_transformers", None)
        build(optimizer, *args, **kwargs)

    return build_by_old_names


def _experimental_layers() -> ModuleType:
    module = ModuleType("keras.layers.experimental")
    vars(module)["preprocessing"] = keras.layers
    return module


def _experimental_policies() -> ModuleType:
    module = ModuleType("keras.mixed_precision.experimental")
    vars(module).update(
        Policy=keras.mixed_precision.Policy,
        global_policy=keras.mixed_precision.global_policy,
        set_policy=keras.mixed_precision.set_global_policy,
    )
    return module


def _finding_file(dataset: str, download: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what finds the file of a data set: the user's own, or Keras's."""

    @functools.wraps(download)
    def find(fname: str, *args: Any, **kwargs: Any) -> Any:
        folder = os.environ.get(DATASETS_VARIABLE)
        if folder is not None and not Path(folder).is_dir():
            raise FileNotFoundError(
                f"{DATASETS_VARIABLE} is {folder!r}, and there is no such folder. Name the one "
                f"that has {fname!r}, or unset it."
            )
        if folder is not None and (Path(folder) / fname).exists():
            return str(Path(folder) / fname)
        try:
            return download(fname, *args, **kwargs)
        except Exception as error:
            at_home = Path(keras_config.keras_home()) / "datasets" / fname
            raise FileNotFoundError(
                f"keras.datasets.{dataset} has no file, and Keras could not download it: {error}. "
                f"Put Keras's own file at {at_home}, or one of yours of the same form into a "
                f"folder, as {fname!r}, and name the folder: python -m poptorch_emu --datasets "
                f"FOLDER, or the environment variable {DATASETS_VARIABLE}."
            ) from error

    return find
