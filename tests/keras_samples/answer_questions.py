"""What a program can ask about a value that Keras returned: is it a tensor, of which type, ...?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_TYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool")
_TYPES += ("uint32", "int16", "complex64", "complex128", "string")

QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "isinstance(x, tf.Tensor)": lambda x: isinstance(x, tf.Tensor),
    "isinstance(x, tf.Variable)": lambda x: isinstance(x, tf.Variable),
    "isinstance(x, keras.Variable)": lambda x: isinstance(x, keras.Variable),
    "tf.is_tensor(x)": tf.is_tensor,
    "keras.ops.is_tensor(x)": lambda x: keras.ops.is_tensor(x),
    "x.shape": lambda x: tuple(x.shape),
    "x.shape == [...]": lambda x: x.shape == list(x.shape),
    "x.shape == (...)": lambda x: x.shape == tuple(x.shape),
    "x.shape.rank": lambda x: x.shape.rank,
    "x.shape.as_list()": lambda x: x.shape.as_list(),
    "type(x.shape[0])": lambda x: type(x.shape[0]).__name__,
    'x.dtype == "..."': lambda x: [name for name in _TYPES if x.dtype == name],
    "x.dtype == tf....": lambda x: [n for n in _TYPES if x.dtype == getattr(tf, n)],
    "x.dtype.name": lambda x: x.dtype.name,
    "x.dtype.is_floating": lambda x: x.dtype.is_floating,
    "x.ndim": lambda x: x.ndim,
    'hasattr(x, "numpy")': lambda x: hasattr(x, "numpy"),
    'hasattr(x, "detach")': lambda x: hasattr(x, "detach"),
    'hasattr(x, "_keras_mask")': lambda x: getattr(x, "_keras_mask", None) is not None,
    "tf.executing_eagerly()": lambda x: tf.executing_eagerly(),
}
# Asked where TensorFlow computes at once.
_OF_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "type(x.numpy())": lambda x: type(x.numpy()).__name__,
    "np.asarray(x).dtype": lambda x: str(np.asarray(x).dtype),
    "str(x)": lambda x: str(x).partition("(")[0].partition("'")[0] if np.ndim(x) else "",
    "repr(x)": lambda x: repr(x).partition(":")[0].partition("'")[0],
    "type(x + 1)": lambda x: isinstance(x + 1, tf.Tensor),
}
_PLAIN = (int, float, bool, str, bytes, complex, type(None), np.dtype, tf.DType)


def answers(value: Any) -> dict[str, Any]:
    """Returns the structure of a result, the answers for each leaf, and its numbers if any."""
    leaves: list[dict[str, Any]] = []
    structure = _walk(value, leaves)
    return {"structure": structure, "leaves": leaves}


def _walk(value: Any, leaves: list[dict[str, Any]]) -> str:
    kind = type(value).__name__
    if isinstance(value, Mapping):
        inner = [f"{key}: {_walk(each, leaves)}" for key, each in value.items()]
        return f"{kind}({', '.join(inner)})"
    if isinstance(value, (list, tuple)):
        return f"{kind}({', '.join(_walk(each, leaves) for each in value)})"
    if isinstance(value, _PLAIN):
        leaves.append({"value": value} if isinstance(value, (int, float, bool)) else {})
        return kind if value is None or isinstance(value, (int, float)) else f"{kind} {value!s:.40}"
    if isinstance(value, (np.ndarray, np.generic)):
        leaves.append({"shape": value.shape, "dtype": str(value.dtype), "value": value})
        return "ndarray" if isinstance(value, np.ndarray) else "NumPy's number"
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        leaves.append({})
        return kind
    leaves.append(dict(_asked(value)))
    return "*"


def _asked(value: Any) -> Iterator[tuple[str, Any]]:
    for name, question in QUESTIONS.items():
        yield name, _answer(question, value)
    if not tf.executing_eagerly():
        return
    for name, question in _OF_NUMBERS.items():
        yield name, _answer(question, value)
    numbers = _answer(lambda x: np.asarray(x.numpy() if hasattr(x, "numpy") else x), value)
    if isinstance(numbers, np.ndarray) and numbers.dtype != object:
        yield "value", numbers


def _answer(question: Callable[[Any], Any], value: Any) -> Any:
    try:
        return question(value)
    except Exception as error:
        return type(error).__name__
