"""Converts values of TensorFlow to tensors of PyTorch, and back.

Without TensorFlow in the program, results stay tensors of PyTorch.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

from poptorch_emu.keras.capture.symbolic_values import outside_of_graphs


def tensorflow() -> Any:
    """Returns TensorFlow; `None` if the program has not imported it."""
    return sys.modules.get("tensorflow")


def is_host_tensor(value: Any) -> bool:
    """Returns whether a value is a tensor with elements, of NumPy, PyTorch or TensorFlow."""
    tf = tensorflow()
    return isinstance(value, (np.ndarray, np.generic, torch.Tensor)) or (
        tf is not None and isinstance(value, tf.Tensor)
    )


def to_torch(value: Any) -> torch.Tensor:
    """Returns a tensor of PyTorch with the elements of a host tensor.

    Raises:
        TypeError: the device does not support the type.
    """
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    with outside_of_graphs():
        array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    if array.dtype.kind not in "biuf":
        name = getattr(value.dtype, "name", value.dtype)
        raise TypeError(f"Unsupported data type for input: {name}")
    return torch.from_numpy(np.array(array))  # A copy, which can be written to.


def to_host(value: torch.Tensor) -> Any:
    """Returns a result for the program: a TensorFlow tensor if TensorFlow is loaded."""
    tf = tensorflow()
    if tf is None:
        return value
    with outside_of_graphs():
        return tf.constant(value.detach().numpy())


def as_result(value: Any) -> Any:
    """Returns a number of Python as TensorFlow's functions return it; other values unchanged."""
    tf = tensorflow()
    if tf is None or not isinstance(value, (bool, int, float, np.ndarray, np.generic)):
        return value
    with outside_of_graphs():
        return tf.constant(value)
