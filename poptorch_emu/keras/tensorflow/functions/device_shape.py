"""Shapes with TensorFlow's methods."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


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


class VariableShape(DeviceShape):
    """The shape of a variable, which equals a list of the same sizes, too."""

    def __eq__(self, other: object) -> bool:
        return super().__eq__(tuple(other) if isinstance(other, list) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = DeviceShape.__hash__


def give_shapes_methods() -> None:
    """Gives shapes of Keras's variables and symbolic tensors the methods of TensorFlow's shapes."""
    keras.KerasTensor.get_shape = lambda tensor: DeviceShape(tensor.shape)
    for kind, shape in ((keras.KerasTensor, DeviceShape), (keras.Variable, VariableShape)):
        sizes = kind.shape.fget
        kind.shape = kind.shape.getter(lambda x, sizes=sizes, shape=shape: shape(sizes(x)))
