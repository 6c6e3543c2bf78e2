"""Evaluates expressions with tensors, arrays, variables or lists, and records the answers."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras_samples import answer_expressions as texts
from keras_samples import answer_names as names
from keras_samples.answer_questions import answers

FORMS = ("tensor", "array", "variable", "list")

# Expressions with all forms of arguments; with tensors and arrays; and with tensors, on the host.
Expressions = tuple[list[str], list[str], list[str]]
_given: list[Any] = []


def spy(function: Callable[..., Any], skip: int = 0) -> Callable[..., Any]:
    """Returns a function of the program that records the answers of its arguments."""

    @functools.wraps(function)
    def told(*args: Any, **kwargs: Any) -> Any:
        _given.append(answers([*args[skip:], *kwargs.values()]))
        return function(*args, **kwargs)

    return told


def evaluated(text: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """Returns the answers of an expression's result, or the error."""
    _given.clear()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = answers(eval(compile(text, __file__, "eval"), namespace))
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        found = {"error": f"{type(error).__name__}: {first[:200]}", "text": str(error)[:2000]}
        found["is_refusal"] = type(error).__module__.startswith("poptorch_emu")
    if _given:
        found["given"] = _given[-1]
    return found


def chosen(is_wanted: Callable[[str], bool]) -> Expressions:
    """Returns the expressions; of the generated ones the first two that TensorFlow accepts."""
    tensors = host_names("tensor")
    general: list[str] = []
    for name, function in names.functions().items():
        if is_wanted(name):
            accepted = (
                text
                for text in names.candidates(name, function)
                if "error" not in evaluated(text, tensors)
            )
            general += [text for text, _ in zip(accepted, range(2), strict=False)]
            general += names.variations(name, function)
    few = [*texts.of_classes(), *texts.SMALL, *texts.IMAGE_OPS, *texts.BACKEND]
    few += [*texts.of_layers(), *texts.VARIABLES, *texts.LAYERS, *texts.MODELS, *texts.OPTIMIZERS]
    return general, list(filter(is_wanted, few)), list(filter(is_wanted, texts.HOST))


def _updated(metric: Any, *args: Any) -> Any:
    metric.update_state(*args)
    return metric


def _drawn(*shape: Any) -> Any:
    generator = np.random.default_rng(len(shape))
    if shape and shape[0] == "int":
        return tf.constant(generator.integers(0, 5, shape[1:]).astype(np.int32))
    return tf.constant(generator.normal(size=shape).astype(np.float32))


def _called(layer: Any, inputs: Any) -> Any:
    """Returns what the method `call` returns when the program calls it."""
    many = isinstance(inputs, list)
    layer.build([tuple(x.shape) for x in inputs] if many else tuple(inputs.shape))
    return layer.call(inputs)


def host_names(form: str) -> dict[str, Any]:
    """Returns what expressions name, with tensors on the host in one form."""
    common = {"keras": keras, "np": np, "tf": tf, "spy": spy, "updated": _updated}
    common |= {"drawn": _drawn, "called": _called, "__name__": __name__, **texts.EARLY}
    return {**common, **{name: _formed(each, form) for name, each in names.ARRAYS.items()}}


def _formed(array: np.ndarray, form: str) -> Any:
    if form == "tensor":
        return tf.constant(array)
    if form == "variable":
        return keras.Variable(array, trainable=array.dtype == np.float32, dtype=str(array.dtype))
    return array if form == "array" else array.tolist()


def tensors_with(x: Any) -> dict[str, Any]:
    """Returns tensors that depend on a tensor of a place."""
    zero = keras.ops.sum(keras.ops.cast(x, "float32")) * 0.0
    return {
        name: keras.ops.logical_or(array, zero > 0) if array.dtype == bool
        else keras.ops.convert_to_tensor(array) + keras.ops.cast(zero, str(array.dtype))
        for name, array in names.ARRAYS.items()
    }  # fmt: skip
