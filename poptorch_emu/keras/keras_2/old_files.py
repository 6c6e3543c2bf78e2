"""Files of weights and models with names from Keras 2, which did not prescribe a suffix.

Keras 3 tells the format of a file by its suffix. If a program uses another suffix, the right one is
added, and a line in the log says so.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import keras
from keras.src.saving import saving_api

from poptorch_emu.errors import Error, compiler_error
from poptorch_emu.keras.replacement import replace_functions
from poptorch_emu.keras.settings.saved_stages import RESTORE, SAVE
from poptorch_emu.log import logger

_WEIGHTS, _MODEL = ".weights.h5", ".keras"
_OLD = (".h5", ".hdf5")
# Suffixes that Keras accepts. Whole models may have several old suffixes, checkpoints only one.
_KNOWN = {_WEIGHTS: (_WEIGHTS, ".weights.json", _MODEL), _MODEL: (_MODEL, *_OLD)}
_OF_CHECKPOINTS = {**_KNOWN, _MODEL: (_MODEL, ".h5")}


def install() -> None:
    """Makes Keras accept names without its suffixes."""
    save, load = partial(_save, suffix=_WEIGHTS), partial(_load, suffix=_WEIGHTS)
    replace_functions(keras.Model, save_weights=save, load_weights=load)
    save, load = partial(_save, suffix=_MODEL), partial(_load, suffix=_MODEL)
    tf_keras: Any = importlib.import_module("keras._tf_keras.keras")
    for owner in (saving_api, keras.models, keras.saving, tf_keras.models):
        replace_functions(owner, save_model=save, load_model=load)
    replace_functions(keras.callbacks.ModelCheckpoint, __init__=_build_checkpoint)


def saved_model_refused(name: str) -> Error:
    """Returns the error for a function that would write a SavedModel of TensorFlow."""
    return compiler_error(
        f"{name} writes a SavedModel, a program of TensorFlow, but models on the IPU compute with "
        "PyTorch. Save with model.save('name.keras'). A process with KERAS_BACKEND=tensorflow can "
        "load this file, and export it."
    )


@cache
def refuse_saved_models(tf: Any) -> None:
    """Makes `tf.saved_model.save` refuse models of Keras."""
    replace_functions(tf.saved_model, save=_save_others)


def _save_others(save: Callable[..., Any], obj: Any, *args: Any, **kwargs: Any) -> Any:
    if isinstance(obj, keras.Model):
        raise saved_model_refused("tf.saved_model.save")
    return save(obj, *args, **kwargs)


def _renamed(path: Any, suffix: str, known: Mapping[str, tuple[str, ...]]) -> Any:
    """Returns a path with the suffix that Keras 3 requires."""
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
    if not name or name.endswith(known[suffix]):
        return path
    stem, old = name.rstrip("/" + os.sep) if suffix == _MODEL else name, ""
    if stem.endswith(_OLD):
        stem, old = os.path.splitext(stem)
    return stem + (".h5" if old and suffix == _MODEL else suffix)


def _told(path: Any, renamed: Any) -> Any:
    if renamed is not path:
        logger.info("Keras 3 names files by their form: %s becomes %s.", path, renamed)
    return renamed


def _save(
    save: Callable[..., Any], model: Any, filepath: Any, *args: Any, suffix: str, **kwargs: Any
) -> Any:
    if kwargs.pop("save_format", "keras") == "tf":
        raise ValueError(
            f"save_format='tf' writes a SavedModel, which Keras 3 does not. Save as "
            f"'{filepath}{suffix}'."
        )
    renamed = _told(filepath, _renamed(filepath, suffix, _KNOWN))
    if isinstance(renamed, (str, os.PathLike)):  # A missing folder must not lose a training.
        Path(renamed).parent.mkdir(parents=True, exist_ok=True)
    result = save(model, renamed, *args, **kwargs)
    if suffix == _MODEL and SAVE in vars(model) and Path(renamed).is_file():
        vars(model)[SAVE](Path(renamed))
    return result


def _load(load: Callable[..., Any], *args: Any, suffix: str, **kwargs: Any) -> Any:
    """Loads a file that has its given name, or its new suffix."""
    given = inspect.signature(load).bind(*args, **kwargs)
    named = given.arguments["filepath"]
    path = _newest(named, _renamed(named, suffix, _OF_CHECKPOINTS))
    given.arguments["filepath"] = path
    result = load(*given.args, **given.kwargs)
    if suffix == _MODEL and RESTORE in vars(result) and Path(path).is_file():
        vars(result)[RESTORE](Path(path))
    return result


def _newest(named: Any, written: Any) -> Any:
    """Returns the newer of two files; the first path if neither is a file."""
    if written is named:
        return named
    there = [path for path in (named, written) if Path(path).is_file()]
    return max(there, key=lambda path: Path(path).stat().st_mtime_ns, default=named)


def _build_checkpoint(build: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Builds a checkpoint, which saves either weights or models."""
    if kwargs.pop("period", 1) != 1:
        raise ValueError(
            "ModelCheckpoint(period=...) is not taken by Keras 3. Set save_freq, in batches."
        )
    given = inspect.signature(build).bind(*args, **kwargs)
    suffix = _WEIGHTS if given.arguments.get("save_weights_only") else _MODEL
    named = given.arguments["filepath"]
    given.arguments["filepath"] = _told(named, _renamed(named, suffix, _OF_CHECKPOINTS))
    build(*given.args, **given.kwargs)
