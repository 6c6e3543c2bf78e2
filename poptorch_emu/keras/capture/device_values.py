"""Tells values of the device from values of the host, and converts between their forms."""

from __future__ import annotations

from typing import Any

import keras
import torch
from keras.src.backend.common.symbolic_scope import in_symbolic_scope

from poptorch_emu.keras.capture.capture_state import current
from poptorch_emu.keras.capture.host_values import is_host_tensor, to_host, to_torch
from poptorch_emu.keras.capture.symbolic_values import left
from poptorch_emu.keras.capture.tensorflow_variables import is_variable, value_of


def is_computing() -> bool:
    """Returns whether this thread captures a program of Keras, whose tensors are the device's."""
    return current() is not None or in_symbolic_scope()


def is_of_device(value: Any) -> bool:
    """Returns whether the device computes a value; other values are known beforehand."""
    return isinstance(value, torch.Tensor)


def form_of_value(value: Any) -> Any:
    """Returns a meta tensor for a value of the device, and any other value unchanged."""
    if not is_of_device(value):
        return value
    return torch.empty(value.shape, dtype=value.dtype, device="meta")


def read_variables(values: Any) -> Any:
    """Returns a structure with the current values of its variables and symbolic tensors."""
    return keras.tree.map_structure(_read, values)


def all_on_device(values: Any) -> Any:
    """Returns a structure with numbers, host tensors and variables converted to tensors."""
    return keras.tree.map_structure(_on_device, values)


def _read(leaf: Any) -> Any:
    found = left(leaf)
    if isinstance(found, keras.Variable):
        return found.value
    if found is not leaf:
        return found if is_of_device(found) else to_host(to_torch(found))
    if is_variable(leaf):
        return value_of(leaf)
    return leaf


def _on_device(leaf: Any) -> Any:
    leaf = _read(leaf)
    if is_of_device(leaf):
        return leaf
    if isinstance(leaf, bool):
        return torch.tensor(leaf)
    if isinstance(leaf, (int, float)):
        return torch.tensor(leaf, dtype=torch.int32 if isinstance(leaf, int) else torch.float32)
    return to_torch(leaf) if is_host_tensor(leaf) else leaf
