"""Functions, methods and classes of a program that Keras calls.

Keras calls them with tensors of PyTorch; they receive and return TensorFlow's tensors.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import keras
from keras.src import activations, constraints, regularizers
from keras.src.backend.torch.trainer import TorchTrainer
from keras.src.losses.losses import LossFunctionWrapper
from keras.src.metrics.reduction_metrics import MeanMetricWrapper
from keras.src.ops.operation import Operation
from keras.src.saving import object_registration

from poptorch_emu.keras.capture.device_values import is_computing
from poptorch_emu.keras.capture.symbolic_values import entered
from poptorch_emu.keras.replacement import replace_functions
from poptorch_emu.keras.tensorflow.functions.calls_on_host import (
    call_program,
    is_called,
    to_tensorflow,
)
from poptorch_emu.keras.tensorflow.functions.device_graph import current_graph, device_graph
from poptorch_emu.keras.tensorflow.functions.program_calls import is_called_by_program, is_library

# Methods that a program may override, and that Keras calls with tensors.
_OVERRIDDEN = (
    "__call__", "call", "compute_loss", "compute_mask", "compute_metrics", "predict_step", "result",
    "test_step", "train_step", "update_state", "update_step",
)  # fmt: skip
# Attributes of layers that hold functions or objects which a program may define.
_FUNCTIONS = [
    "activation", "recurrent_activation", "activity_regularizer",
    *(f"{weight}_{kind}" for weight in ("kernel", "bias", "recurrent", "embeddings")
      for kind in ("regularizer", "constraint")),
]  # fmt: skip


def install() -> None:
    """Lets what a program defines receive TensorFlow's tensors, wherever Keras calls it."""
    replace_functions(keras.losses.Loss, __init__=_build)
    replace_functions(keras.metrics.Metric, __init__=_build)
    replace_functions(keras.optimizers.Optimizer, __init__=_build)
    for kind in (LossFunctionWrapper, MeanMetricWrapper):
        replace_functions(kind, __init__=_build_around_function)
    replace_functions(Operation, __new__=_new_operation)
    for room in (activations, regularizers, constraints):
        replace_functions(room, get=_function_or_object)
    for name in _FUNCTIONS:
        setattr(keras.layers.Layer, name, _AttributeForProgram(name))
    for name in ("mean", "variance"):
        setattr(keras.layers.Normalization, name, _AttributeForProgram(name))
    steps = ("make_train_function", "make_test_function", "make_predict_function")
    replace_functions(TorchTrainer, **dict.fromkeys(steps, _make_in_graph))
    keras.layers.Lambda.call = for_program(keras.layers.Lambda.call)


def for_program(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a user's function, which Keras calls with tensors of PyTorch.

    The function receives and returns TensorFlow's tensors: symbolic ones for the device and in
    `fit`, eager ones on the host.
    """
    computed = on_device(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_called_by_program(sys._getframe(1)):
            return function(*args, **kwargs)
        if current_graph() is None and not is_computing() and is_called():
            return call_program(function, args, kwargs)
        return computed(*args, **kwargs)

    call.is_for_program = True  # type: ignore[attr-defined]
    names = object_registration.GLOBAL_CUSTOM_NAMES
    if (
        isinstance(function, FunctionType) and function in names
    ):  # Keras saves functions by their names.
        names[call] = names[function]
    return call


def on_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a user's function that computes with tensors of PyTorch, by symbolic ones."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with device_graph():
            return left_on_device(function(*entered(args), **entered(kwargs)))

    return call


def left_on_device(values: Any) -> Any:
    """Returns a structure with tensors of PyTorch only in place of symbolic tensors."""
    graph = current_graph()

    def leave(value: Any) -> Any:
        found = value if graph is None else graph.left(value)
        return found if found is value else keras.ops.convert_to_tensor(found)

    return keras.tree.map_structure(leave, values)


def is_function(value: Any) -> bool:
    """Returns whether a value is a function, also as a method, partial or `tf.function`."""
    kinds = (FunctionType, MethodType, functools.partial)
    return isinstance(value, kinds) or hasattr(value, "python_function")


def wrapped(function: Any) -> Any:
    """Returns a function, wrapped by `for_program` unless it is of Keras or PyTorch."""
    plain = getattr(function, "python_function", function)
    inner = getattr(plain, "func", plain)  # That of functools.partial.
    names = getattr(inner, "__globals__", {})  # Of the code, also if functools.wraps was used.
    module = names.get("__name__") or getattr(inner, "__module__", None) or ""
    if is_library(module) or getattr(function, "is_for_program", False):
        return function
    found = for_program(plain)
    found.of_program = function  # type: ignore[attr-defined]
    return found


def _give_tensors(kind: type) -> None:
    """Lets methods of a class, if a program defines them, receive TensorFlow's tensors."""
    for each in kind.__mro__:
        for name in _OVERRIDDEN:
            own = vars(each).get(name)
            if is_function(own) and not is_library(each.__module__):
                setattr(each, name, wrapped(own))


def _new_operation(make: Callable[..., Any], cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Makes a layer, model or operation."""
    _give_tensors(cls)
    return make(cls, *args, **kwargs)


def _build(build: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    """Builds a loss, a metric or an optimizer."""
    _give_tensors(type(self))
    build(self, *args, **kwargs)


def _build_around_function(
    build: Callable[..., None], self: Any, fn: Any, *args: Any, **kwargs: Any
) -> None:
    """Builds a loss or metric around a function, which the program may define."""
    build(self, wrapped(fn), *args, **kwargs)


def _function_or_object(get: Callable[..., Any], identifier: Any) -> Any:
    """Returns what a text, function or object stands for, such as an activation."""
    found = get(identifier)
    if is_function(found):
        return wrapped(found)
    _give_tensors(type(found))
    return found


class _AttributeForProgram:
    """An attribute of layers: the program gets its own function, or TensorFlow's tensor."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, layer: Any, kind: type | None = None) -> Any:
        if layer is None or self._name not in vars(layer):
            raise AttributeError(self._name)
        found = vars(layer)[self._name]
        if not is_called_by_program(sys._getframe(1)):
            return found
        found = getattr(found, "of_program", found)
        return to_tensorflow(found) if current_graph() is None else entered(found)

    def __set__(self, layer: Any, value: Any) -> None:
        vars(layer)[self._name] = value

    def __delete__(self, layer: Any) -> None:
        del vars(layer)[self._name]


def _make_in_graph(make: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Makes the function of a model on the host that runs a step; as in TensorFlow, in a graph."""
    result = make(model, *args, **kwargs)
    for name in ("train_function", "test_function", "predict_function"):
        function = getattr(model, name, None)
        if isinstance(function, FunctionType) and not hasattr(function, "is_in_graph"):
            setattr(model, name, _in_graph(function))
    return result


def _in_graph(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any) -> Any:
        with device_graph():
            return function(*args)

    call.is_in_graph = True  # type: ignore[attr-defined]
    return call
