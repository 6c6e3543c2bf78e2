"""Variables of TensorFlow in captured functions, each represented by a variable of Keras.

Elements are copied to Keras's variable before a run, and back after it. Integers become float32
meanwhile, because a device can only return floating-point states.
"""

from __future__ import annotations

from typing import Any

import keras
import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.keras.capture.capture_state import current, suspended
from poptorch_emu.keras.capture.host_values import tensorflow, to_torch
from poptorch_emu.torch_versions import disable_current_modes

_COUNTERPART = "_poptorch_counterpart"
# Float32 represents all integers below this one exactly.
_MOST = 2**24


def is_variable(value: Any) -> bool:
    """Returns whether a value is a variable of TensorFlow."""
    tf = tensorflow()
    return tf is not None and isinstance(value, tf.Variable)


def value_of(variable: Any) -> torch.Tensor:
    """Returns the current value of a variable on the device."""
    if current() is None:
        return to_torch(variable)
    value: torch.Tensor = counterpart(variable).value
    return value.to(getattr(torch, variable.dtype.name))


def assign(variable: Any, value: Any) -> None:
    """Assigns a value to a variable on the device."""
    if current() is None:
        with suspended():
            variable.assign(value.detach().cpu().numpy())
        return
    standing_in = counterpart(variable)
    if not isinstance(value, torch.Tensor):
        value = value_of(value) if is_variable(value) else keras.ops.convert_to_tensor(value)
    if tuple(value.shape) != tuple(variable.shape):
        raise ValueError(
            f"A value of the shape {tuple(value.shape)} is assigned to {variable.name!r}, which "
            f"has the shape {tuple(variable.shape)}. Assign a value of this shape."
        )
    standing_in.assign(keras.ops.cast(value, standing_in.dtype))


def counterpart(variable: Any) -> Any:
    """Returns the Keras variable that represents a variable of TensorFlow."""
    found = vars(variable).get(_COUNTERPART)
    if found is None:
        with suspended(), disable_current_modes():
            elements = to_torch(variable)
            found = keras.Variable(
                elements.float(), dtype="float32", trainable=variable.trainable, name="variable"
            )
        found.of_tensorflow = variable
        vars(variable)[_COUNTERPART] = found
    return found


def keras_counterpart(variable: Any) -> Any:
    """Returns the variable that represents an integer of Keras, the number of updates."""
    found = vars(variable).get(_COUNTERPART)
    if found is None:
        with suspended(), disable_current_modes():
            number = float(variable.value)
            found = keras.Variable(number, dtype="float32", trainable=False, name="count")
        found.of_tensorflow = variable
        vars(variable)[_COUNTERPART] = found
    return found


def begin_run(variables: list[Any]) -> None:
    """Copies the elements of TensorFlow's variables to their Keras variables."""
    for each in variables:
        elements = _checked(each, _elements(each.of_tensorflow)).float()
        if not torch.equal(each.value.detach(), elements):
            each.assign(elements)


def end_run(variables: list[Any]) -> None:
    """Copies the elements of the Keras variables back to TensorFlow's variables."""
    for each in variables:
        tensor = each.of_tensorflow
        _checked(each, each.value.detach())
        if isinstance(tensor, keras.Variable):
            tensor.assign(each.value.detach().to(torch.int64))
        else:
            tensor.assign(tensorflow().cast(each.value.detach().numpy(), tensor.dtype))


def _elements(variable: Any) -> torch.Tensor:
    is_of_keras = isinstance(variable, keras.Variable)
    return variable.value.detach() if is_of_keras else to_torch(variable)


def _checked(variable: Any, elements: torch.Tensor) -> torch.Tensor:
    """Returns the elements of a variable.

    Raises:
        Error: an integer is too large to be exact in float32.
    """
    tensor = variable.of_tensorflow
    is_integer = isinstance(tensor, keras.Variable) or tensor.dtype.is_integer
    if is_integer and elements.numel() and elements.abs().max() >= _MOST:
        raise compiler_error(
            f"tf.Variable {tensor.name!r} has the type "
            f"{getattr(tensor.dtype, 'name', tensor.dtype)} and holds "
            f"{int(elements.abs().max())}, but integers of variables on the IPU must be below "
            f"{_MOST} here. Pass it to the function as an argument, or hold a smaller number."
        )
    return elements
