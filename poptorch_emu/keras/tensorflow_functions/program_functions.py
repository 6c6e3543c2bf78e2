"""Functions of TensorFlow that have no dispatch, or that would freeze what the device computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import torch
from keras import ops
from keras import random as keras_random

from poptorch_emu.keras.loops.capture_state import current
from poptorch_emu.trace.blocks import is_tracing


def shape(tf: Any) -> Callable[..., Any]:
    """Returns tf.shape: a constant of the host, since shapes are known."""

    def found(input: Any, out_type: Any = None) -> Any:
        sizes = tuple(input.shape)
        return sizes if None in sizes else tf.constant(sizes, out_type or tf.int32)

    return found


def size(tf: Any) -> Callable[..., Any]:
    """Returns tf.size: a constant of the host."""

    def found(input: Any, out_type: Any = None) -> Any:
        return tf.constant(torch.Size(input.shape).numel(), out_type or tf.int32)

    return found


def rank(tf: Any) -> Callable[..., Any]:
    """Returns tf.rank: a constant of the host."""
    return lambda input: tf.constant(len(input.shape))


def replace(tf: Any) -> None:
    """Gives TensorFlow functions of these names that know values of the device."""
    of_values = (tf, "einsum", _einsum), (tf.linalg, "einsum", _einsum), (tf, "map_fn", _map_fn)
    for owner, name, function in (*of_values, (tf, "is_tensor", lambda x: True)):
        _replace(owner, name, function, _has_device_values)
    for name, drawn in _RANDOM.items():
        _replace(tf.random, name, drawn, _is_on_device)


def _has_device_values(*arguments: Any) -> bool:
    leaves = keras.tree.flatten(arguments)
    return any(isinstance(leaf, (torch.Tensor, keras.KerasTensor)) for leaf in leaves)


def _is_on_device(*arguments: Any) -> bool:
    """Returns whether the device computes: what the host draws would be drawn only once."""
    return current() is not None or is_tracing()


def _replace(
    owner: Any, name: str, function: Callable[..., Any], is_meant: Callable[..., bool]
) -> None:
    """Replaces a function for those calls whose arguments are so."""
    original = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        return (function if is_meant(args, kwargs) else original)(*args, **kwargs)

    call.__name__, call.__doc__ = name, original.__doc__
    setattr(owner, name, call)


def _einsum(equation: str, *inputs: Any, **kwargs: Any) -> Any:
    return ops.einsum(equation, *inputs)


def _map_fn(fn: Callable[..., Any], elems: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls a function for each row."""
    count = keras.tree.flatten(elems)[0].shape[0]
    results = [
        fn(keras.tree.map_structure(lambda each, row=row: each[row], elems)) for row in range(count)
    ]
    return keras.tree.map_structure(lambda *rows: ops.stack(rows), *results)


def _sizes(shape: Any) -> tuple[int, ...]:
    return tuple(int(each) for each in (shape.numpy() if hasattr(shape, "numpy") else shape))


def _type(dtype: Any) -> str:
    return "float32" if dtype is None else str(getattr(dtype, "name", dtype))


def _uniform(
    shape: Any, minval: Any = 0, maxval: Any = None, dtype: Any = None, seed: Any = None,
    name: Any = None,
) -> Any:  # fmt: skip
    kind, high = _type(dtype), 1 if maxval is None else maxval
    if kind.startswith(("int", "uint")):
        return keras_random.randint(_sizes(shape), int(minval), int(high), kind)
    return keras_random.uniform(_sizes(shape), dtype="float32") * (high - minval) + minval


def _normal(
    shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None,
    name: Any = None,
) -> Any:  # fmt: skip
    return keras_random.normal(_sizes(shape), dtype=_type(dtype)) * stddev + mean


def _truncated_normal(
    shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None,
    name: Any = None,
) -> Any:  # fmt: skip
    return keras_random.truncated_normal(_sizes(shape), dtype=_type(dtype)) * stddev + mean


_RANDOM = {"uniform": _uniform, "normal": _normal, "truncated_normal": _truncated_normal}
