"""The variable of TensorFlow that `layer.kernel.value` is for a program."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

from poptorch_emu.keras.capture.symbolic_values import current_graph
from poptorch_emu.keras.replacement import replace_functions
from poptorch_emu.keras.tensorflow.functions.program_calls import is_called_by_program
from poptorch_emu.keras.tensorflow.functions.raw_call import refusal

_CHANGING = ("assign", "scatter", "batch_scatter")
_CONVERSIONS = {"__int__", "__float__", "__bool__", "__complex__"}


class WeightValue(tf.Variable):  # type: ignore[misc]
    """The value of a weight of Keras, as a variable of TensorFlow.

    The weight keeps the elements. Functions that run on the device may read and assign. The other
    methods work on the host: a copy performs them, and the weight gets what they change.
    """

    def __init__(self, weight: Any) -> None:
        self.weight = weight

    is_tensor_like = True  # `tf.is_tensor` looks for this name.
    shape = property(lambda self: tf.TensorShape(self.weight.shape))
    dtype = property(lambda self: tf.as_dtype(self.weight.dtype))
    name = property(lambda self: self.weight.name)
    trainable = property(lambda self: self.weight.trainable)

    def __repr__(self) -> str:
        return repr(self.weight)

    def __getitem__(self, index: Any) -> Any:
        return tf.convert_to_tensor(self)[index]

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.numpy().__array__(*args, **kwargs)

    def __hash__(self) -> int:
        return hash(id(self.weight))

    def value(self) -> Any:
        """Returns the current elements, as a tensor."""
        return tf.convert_to_tensor(self.weight)

    read_value = value

    def _dense_var_to_tensor(self, dtype: Any = None, name: Any = None, as_ref: Any = False) -> Any:
        return tf.convert_to_tensor(self.weight, dtype)


def give_weights_values() -> None:
    """Gives programs a `WeightValue` where Keras itself gets a tensor of PyTorch."""
    names = {
        name
        for kind in (tf.Variable, BaseResourceVariable)
        for name, method in vars(kind).items()
        if isinstance(method, FunctionType) and (name[0] != "_" or name in _CONVERSIONS)
    }
    for name in names - set(vars(WeightValue)):
        setattr(WeightValue, name, _of_variable(name))
    value = keras.Variable.value.fget

    def get(weight: Any) -> Any:
        is_wanted = is_called_by_program(sys._getframe(1))
        return WeightValue(weight) if is_wanted else value(weight)

    keras.Variable.value = keras.Variable.value.getter(get)
    replace_functions(keras.Variable, __getitem__=_element)


def _element(original: Callable[..., Any], weight: Any, index: Any) -> Any:
    """Returns a part of a weight; for programs, TensorFlow's forms of an index are valid."""
    if not is_called_by_program(sys._getframe(1)):
        return original(weight, index)
    if isinstance(index, int) and not -weight.shape[0] <= index < weight.shape[0]:
        raise IndexError(f"{weight.path} has {weight.shape[0]} elements, but not number {index}.")
    found = tf.convert_to_tensor(weight)[index]
    found.assign = functools.partial(_assign_element, weight, index)
    return found


def _assign_element(weight: Any, index: Any, value: Any, name: Any = None) -> WeightValue:
    """Assigns to a part of a weight on the host, as `weight[index].assign(value)`."""
    if current_graph() is not None:
        raise refusal("weight[index].assign of a weight of Keras", "Assign the whole weight")
    variable = tf.Variable(tf.convert_to_tensor(weight))
    variable[index].assign(value)
    weight.assign(variable)
    return WeightValue(weight)


def _of_variable(name: str) -> Callable[..., Any]:
    """Returns a method that a variable of TensorFlow with the same elements performs."""

    def perform(self: WeightValue, *args: Any, **kwargs: Any) -> Any:
        if current_graph() is not None:
            if name.startswith("assign"):
                return getattr(self.weight, name)(*args, **kwargs)
            raise refusal(
                f"{name} of the value of a weight of Keras", "Use the weight itself, or assign it"
            )
        variable = tf.Variable(self.value(), name=self.name)
        found = getattr(variable, name)(*args, **kwargs)
        if name.startswith(_CHANGING):
            self.weight.assign(variable)
            return self
        return found

    perform.__name__ = name
    return perform
