"""Shapes with TensorFlow's methods."""

from __future__ import annotations

import math
from typing import Any

import keras


class DeviceShape(tuple[Any, ...]):
    """A tuple with the methods of TensorFlow's shapes."""

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self)

    ndims = rank
    dims = property(tuple)

    def as_list(self) -> list[Any]:
        """Returns the sizes."""
        return list(self)

    def num_elements(self) -> int | None:
        """Returns the number of elements; `None` if a size is not known."""
        return math.prod(self) if self.is_fully_defined() else None

    numel = num_elements

    def is_fully_defined(self) -> bool:
        """Returns whether all sizes are known."""
        return None not in self

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return DeviceShape(found) if isinstance(index, slice) else found


def give_shapes_methods() -> None:
    """Gives shapes of Keras's symbolic tensors the methods of TensorFlow's shapes."""
    keras.KerasTensor.get_shape = lambda tensor: DeviceShape(tensor.shape)
    sizes = keras.KerasTensor.shape.fget
    keras.KerasTensor.shape = keras.KerasTensor.shape.getter(lambda x: DeviceShape(sizes(x)))
