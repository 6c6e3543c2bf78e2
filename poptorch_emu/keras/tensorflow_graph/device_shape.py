"""Shapes as programs of TensorFlow ask for them."""

from __future__ import annotations

import math
from typing import Any

import keras


class DeviceShape(tuple[Any, ...]):
    """A shape that has the methods of TensorFlow's, and is a tuple else."""

    @property
    def rank(self) -> int:
        """How many axes there are."""
        return len(self)

    ndims = rank
    dims = property(tuple)

    def as_list(self) -> list[Any]:
        """Returns the sizes."""
        return list(self)

    def num_elements(self) -> int | None:
        """Returns how many elements there are, `None` if a size is not known."""
        return math.prod(self) if self.is_fully_defined() else None

    numel = num_elements

    def is_fully_defined(self) -> bool:
        """Returns whether all sizes are known."""
        return None not in self

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return DeviceShape(found) if isinstance(index, slice) else found


def give_shapes_methods() -> None:
    """Lets the shapes of symbolic tensors of Keras be asked as TensorFlow's are."""
    keras.KerasTensor.get_shape = lambda tensor: DeviceShape(tensor.shape)
    sizes = keras.KerasTensor.shape.fget
    keras.KerasTensor.shape = keras.KerasTensor.shape.getter(lambda x: DeviceShape(sizes(x)))
