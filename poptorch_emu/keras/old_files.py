"""Files of weights and models whose names Keras 2 left to the program.

Keras 3 tells the form of a file by its suffix. Where a program gives none, it is added and said.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from poptorch_emu.log import logger

_WEIGHTS, _MODEL = ".weights.h5", ".keras"
_KNOWN = (_WEIGHTS, _MODEL, ".h5", ".hdf5")


def install() -> None:
    """Makes Keras take such names."""
    model: Any = keras.Model
    model.save_weights = _with_suffix(model.save_weights, _WEIGHTS)
    model.load_weights = _finding(model.load_weights)
    model.save = _with_suffix(model.save, _MODEL)
    checkpoint: Any = keras.callbacks.ModelCheckpoint
    checkpoint.__init__ = _with_suffix_of_kind(checkpoint.__init__)


def with_suffix(path: Any, suffix: str) -> Any:
    """Returns a path that ends as Keras 3 wants it."""
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
    if not name or name.endswith(_KNOWN):
        return path
    if suffix == _MODEL and name.endswith(("/", os.sep)):
        name = name.rstrip("/" + os.sep)
    logger.info("Keras 3 names files by their form: %s becomes %s.", name, name + suffix)
    return name + suffix


def _with_suffix(save: Callable[..., Any], suffix: str) -> Callable[..., Any]:
    @functools.wraps(save)
    def save_with_suffix(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.pop("save_format", "keras") == "tf":
            raise ValueError(
                f"save_format='tf' writes a SavedModel, which Keras 3 does not. Save as "
                f"'{filepath}{suffix}'."
            )
        return save(model, with_suffix(filepath, suffix), *args, **kwargs)

    return save_with_suffix


def _finding(load: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what loads weights from the file that was written for a name."""

    @functools.wraps(load)
    def load_with_suffix(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        named = with_suffix(filepath, _WEIGHTS)
        filepath = named if isinstance(named, str) and Path(named).exists() else filepath
        return load(model, filepath, *args, **kwargs)

    return load_with_suffix


def _with_suffix_of_kind(build: Callable[..., None]) -> Callable[..., None]:
    """Returns the constructor of checkpoints, which save weights or models."""

    @functools.wraps(build)
    def build_with_suffix(callback: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.pop("period", 1) != 1:
            raise ValueError(
                "ModelCheckpoint(period=...) is not taken by Keras 3. Set save_freq, in batches."
            )
        saves_weights = kwargs.get("save_weights_only", False)
        path = with_suffix(filepath, _WEIGHTS if saves_weights else _MODEL)
        build(callback, path, *args, **kwargs)

    return build_with_suffix
