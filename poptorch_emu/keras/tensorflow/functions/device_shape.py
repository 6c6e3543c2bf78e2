"""Shapes with TensorFlow's methods."""

from __future__ import annotations

import sys
from typing import Any

import keras
import tensorflow as tf

from poptorch_emu.keras.tensorflow.functions.program_calls import is_called_by_program


class DeviceShape(tuple[Any, ...]):
    """A tuple with the attributes of `tf.TensorShape`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(tf.TensorShape(self), name)

    def numel(self) -> int | None:
        """Returns the number of elements, as PyTorch's shapes do; `None` if a size is not known."""
        count: int | None = self.num_elements()
        return count

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return type(self)(found) if isinstance(index, slice) else found


def give_shapes_methods() -> None:
    """Gives shapes of Keras's variables and symbolic tensors the methods of TensorFlow's shapes."""
    keras.KerasTensor.get_shape = lambda tensor: DeviceShape(tensor.shape)
    sizes = keras.KerasTensor.shape.fget
    keras.KerasTensor.shape = keras.KerasTensor.shape.getter(lambda x: DeviceShape(sizes(x)))
    sizes_of_variable = keras.Variable.shape.fget

    def shape(variable: Any) -> Any:
        is_wanted = is_called_by_program(sys._getframe(1))
        return (tf.TensorShape if is_wanted else tuple)(sizes_of_variable(variable))

    keras.Variable.shape = keras.Variable.shape.getter(shape)
