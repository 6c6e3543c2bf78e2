"""Names and arguments of Keras 2 that Keras 3 rejects although it has a counterpart."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
from keras.src import backend as keras_backend
from keras.src.backend import config as keras_config
from keras.src.losses import losses as keras_losses

from poptorch_emu.keras.keras_2 import old_files, old_optimizers, same_pooling, tensorflow_results
from poptorch_emu.keras.optimizers import wrapped_optimizers
from poptorch_emu.keras.replacement import replace_functions
from poptorch_emu.options.base import note_accepted

# Environment variable with the folder of the user's own files for Keras's data sets.
DATASETS_VARIABLE = "POPTORCH_EMU_DATASETS"

_DATASETS = (
    "boston_housing", "california_housing", "cifar10", "cifar100", "fashion_mnist", "imdb",
    "mnist", "reuters",
)  # fmt: skip
_OF_LOADERS = ("max_queue_size", "workers", "use_multiprocessing")
# Names of `keras.mixed_precision.experimental`.
_POLICIES = SimpleNamespace(
    LossScaleOptimizer=old_optimizers.with_loss_scale,
    Policy=keras.mixed_precision.Policy,
    global_policy=keras.mixed_precision.global_policy,
    set_policy=keras.mixed_precision.set_global_policy,
)


def _labels_of_hinge(y_true: Any) -> Any:
    """Returns labels of -1 and 1 for those of 0 and 1, as Keras does, without a condition."""
    is_binary = keras.ops.all((y_true == 0) | (y_true == 1))
    return keras.ops.where(is_binary, 2.0 * y_true - 1.0, y_true)


@cache
def install() -> None:
    """Makes Keras accept these names and arguments, once in a process."""
    old_optimizers.install()
    wrapped_optimizers.install()
    old_files.install()
    same_pooling.install()
    tensorflow_results.install()
    keras_losses.convert_binary_labels_to_hinge = _labels_of_hinge
    replace_functions(keras_backend, standardize_shape=_standardize_shape)
    tf_keras = importlib.import_module("keras._tf_keras.keras")
    for root in (keras, tf_keras):
        root.layers.experimental = SimpleNamespace(preprocessing=keras.layers)
        root.mixed_precision.experimental = _POLICIES
        root.losses.Reduction = _Reduction
        root.optimizers.experimental = root.optimizers  # Keras of 2022 had today's classes there.
    for room in ("losses", "metrics"):  # TensorFlow's Keras has short names of functions.
        own = getattr(tf_keras, room)
        for name, value in vars(getattr(keras, room)).items():
            if not hasattr(own, name):
                setattr(own, name, value)
    for dataset in _DATASETS:
        module = importlib.import_module(f"keras.src.datasets.{dataset}")
        replace_functions(module, get_file=partial(_get_file, dataset))


def compile_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of `compile` by their names in Keras 3."""
    given = dict(given)
    if "experimental_steps_per_execution" in given:
        given["steps_per_execution"] = given.pop("experimental_steps_per_execution")
    return given


def run_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of `fit`, for example, without those that only load data."""
    for name in _OF_LOADERS:
        if name in given:
            note_accepted(f"fit({name}=...)")
    return {name: value for name, value in given.items() if name not in _OF_LOADERS}


class _Reduction:
    """Reductions of a loss to one number, by their names in Keras 2."""

    AUTO = SUM_OVER_BATCH_SIZE = "sum_over_batch_size"
    NONE = "none"
    SUM = "sum"


def _standardize_shape(standardize: Callable[[Any], Any], shape: Any) -> Any:
    """Returns a shape in Keras's form; a number stands for the shape (number,)."""
    return standardize((shape,) if isinstance(shape, int) else shape)


def _get_file(
    dataset: str, download: Callable[..., Any], fname: str, *args: Any, **kwargs: Any
) -> Any:
    """Returns the path of a data set's file: the user's own, or Keras's."""
    folder = os.environ.get(DATASETS_VARIABLE)
    if folder is not None and not Path(folder).is_dir():
        raise FileNotFoundError(
            f"{DATASETS_VARIABLE} is {folder!r}, and there is no such folder. Set it to the "
            f"folder that contains {fname!r}, or unset it."
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
