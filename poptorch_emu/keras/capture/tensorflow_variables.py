"""Variables of TensorFlow, and integers of Keras, each represented by a variable of Keras.

Elements are copied to this variable before a run, and back after it. It has floating-point numbers
in place of integers, because a device can only return floating-point states.
"""

from __future__ import annotations

from typing import Any

import keras
import torch
from keras.src.backend.common.stateless_scope import in_stateless_scope

from poptorch_emu.errors import compiler_error
from poptorch_emu.keras.capture.capture_state import current, suspended
from poptorch_emu.keras.capture.host_values import tensorflow, to_torch
from poptorch_emu.keras.capture.integers import as_state, check_integers, from_state
from poptorch_emu.torch_versions import disable_current_modes

_COUNTERPART = "_poptorch_counterpart"


def is_variable(value: Any) -> bool:
    """Returns whether a value is a variable of TensorFlow."""
    tf = tensorflow()
    return tf is not None and isinstance(value, tf.Variable)


def value_of(variable: Any) -> torch.Tensor:
    """Returns the current value of a variable on the device."""
    if current() is None:
        return to_torch(variable)
    return from_state(counterpart(variable).value, _type_of(variable))


def assign(variable: Any, value: Any) -> None:
    """Assigns a value to a variable on the device."""
    if current() is None:
        with suspended():
            variable.assign(value.detach().cpu().numpy())
        return
    if not isinstance(value, torch.Tensor):
        value = value_of(value) if is_variable(value) else keras.ops.convert_to_tensor(value)
    if tuple(value.shape) != tuple(variable.shape):
        raise ValueError(
            f"A value of the shape {tuple(value.shape)} is assigned to {variable.name!r}, which "
            f"has the shape {tuple(variable.shape)}. Assign a value of this shape."
        )
    counterpart(variable).assign(as_state(value.to(_type_of(variable))).float())


def counterpart(variable: Any) -> Any:
    """Returns the variable that represents a variable of TensorFlow, or an integer of Keras."""
    found = vars(variable).get(_COUNTERPART)
    if found is None and in_stateless_scope():
        raise compiler_error(
            f"A layer or a loss uses {variable.name!r}, a variable of TensorFlow, which fit, "
            "evaluate and predict do not know. Make it a weight of the layer: "
            "self.add_weight(shape=..., trainable=False)."
        )
    if found is None:
        with suspended(), disable_current_modes():
            state = as_state(_elements(variable)).float()
            is_trained = variable.trainable and _type_of(variable).is_floating_point
            found = keras.Variable(state, dtype="float32", trainable=is_trained, name="variable")
        found.of_tensorflow = variable
        vars(variable)[_COUNTERPART] = found
    return found


def begin_run(variables: list[Any]) -> None:
    """Copies the elements of the represented variables to their Keras variables."""
    for each in variables:
        elements = _elements(each.of_tensorflow)
        check_integers(elements)
        state = as_state(elements).float()
        if not torch.equal(each.value.detach(), state):
            each.assign(state)


def end_run(variables: list[Any]) -> None:
    """Copies the elements of the Keras variables back to the represented variables.

    Raises:
        OverflowError: an integer needs more than 32 bits.
    """
    values = [from_state(x.value.detach(), _type_of(x.of_tensorflow)) for x in variables]
    for value in values:
        check_integers(value)
    for each, value in zip(variables, values, strict=True):
        variable = each.of_tensorflow
        if not isinstance(variable, keras.Variable):
            value = value.float() if value.is_floating_point() else value
            value = tensorflow().cast(value.numpy(), variable.dtype)
        variable.assign(value)


def _type_of(variable: Any) -> torch.dtype:
    found: torch.dtype = getattr(torch, keras.backend.standardize_dtype(variable.dtype))
    return found


def _elements(variable: Any) -> torch.Tensor:
    is_of_keras = isinstance(variable, keras.Variable)
    return variable.value.detach() if is_of_keras else to_torch(variable)
