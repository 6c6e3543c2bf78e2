"""Calls functions of TensorFlow on the host, with weights of Keras in place of tensors.

`python -m tensorflow_ops.host [NAME ...]` prints each difference from the same call with tensors.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
import tensorflow as tf
from tensorflow_ops.names import CALLS, calls_for, functions, results

from poptorch_emu.keras import ipu

# These differ for weights of Keras on TensorFlow, too: the value of a variable is not static, and
# the type of a weight is a text. The last two draw other numbers in each call.
_SAME_IN_KERAS = {
    "tf.get_static_value", "tf.keras.backend.dtype", "tf.keras.backend.mean",
    "tf.keras.backend.std", "tf.keras.backend.var", "tf.nn.fractional_avg_pool",
    "tf.nn.fractional_max_pool",
}  # fmt: skip
# Most calls of a function that are compared, and most that are tried.
_MOST, _TRIED = 2, 30


def _weight(array: np.ndarray) -> keras.Variable:
    return keras.Variable(array, dtype=array.dtype.name, trainable=array.dtype == np.float32)


def _expression(array: np.ndarray) -> Any:
    """Returns the product of a weight with 1; weights that are no real numbers have none."""
    return _weight(array) * 1 if array.dtype == np.float32 else tf.constant(array)


def differences(name: str, function: Callable[..., Any]) -> Iterator[str]:
    """Yields a text for each call of a function: empty, or how it differs with weights."""
    num_compared = 0
    function = CALLS.get(name, function)
    for arrays, others in itertools.islice(calls_for(name, function), _TRIED):
        try:
            wanted = _seeded(function, {k: tf.constant(v) for k, v in arrays.items()}, others)
        except Exception:
            continue  # TensorFlow does not accept these arguments.
        for given in (_weight, _expression):
            text = _difference(function, {k: given(v) for k, v in arrays.items()}, others, wanted)
            form = {k: f"{v.dtype}{list(v.shape)}" for k, v in arrays.items()}
            yield text and f"{name}({form}, {others}) with {given.__name__[1:]}: {text}"
        num_compared += 1
        if num_compared == _MOST:
            return


def _seeded(function: Callable[..., Any], tensors: Any, others: Any) -> list[Any]:
    tf.random.set_seed(0)
    return results(function, tensors, others)


def _difference(function: Callable[..., Any], given: Any, others: Any, wanted: list[Any]) -> str:
    try:
        found = _seeded(function, given, others)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    for one, other in zip(found, wanted, strict=True):
        if one.dtype != other.dtype:
            return f"type {one.dtype}, with tensors {other.dtype}"
        is_text = other.dtype == tf.string
        if not is_text and not np.allclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True):
            return f"{one}, with tensors {other}"
    return ""


def main() -> int:
    """Calls all functions, or those that are named."""
    ipu.ipu_strategy.IPUStrategy()
    chosen = {k: v for k, v in functions().items() if k in sys.argv[1:] or not sys.argv[1:]}
    texts = [
        text
        for name, function in chosen.items()
        if name not in _SAME_IN_KERAS
        for text in differences(name, function)
    ]
    found = list(filter(None, texts))
    print(*found, f"{len(texts)} calls with weights on the host, {len(found)} differ", sep="\n")
    return bool(found)


if __name__ == "__main__":
    raise SystemExit(main())
