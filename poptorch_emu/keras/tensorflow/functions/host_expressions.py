"""Expressions with weights of Keras that a program of TensorFlow computes on the host.

`layer.kernel * 2` is a tensor of TensorFlow for the program. Code of libraries still gets tensors
of PyTorch, and so does code that is captured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import keras
import tensorflow as tf
import torch
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.backend.common.variables import Variable as KerasVariable

from poptorch_emu.keras.capture.device_values import is_computing
from poptorch_emu.keras.capture.host_values import HostTensor
from poptorch_emu.keras.capture.symbolic_values import current_graph
from poptorch_emu.keras.replacement import replace_functions
from poptorch_emu.torch_versions import FakeTensor

_LIBRARIES = ("keras.", "poptorch_emu.", "tensorflow.", "torch.")
_OTHER_METHODS = {
    "__getitem__",
    "__init__",
    "__repr__",
    "__int__",
    "__float__",
    "__array__",
    "__bool__",
}
_ASSIGNMENTS = {"assign", "assign_add", "assign_sub"}
_ROOMS = (keras.ops, keras.ops.image, keras.ops.linalg, keras.ops.nn, keras.ops.numpy)


def install() -> None:
    """Replaces the operators of variables, and the functions of `keras.ops`."""
    names = [
        name
        for name, method in vars(KerasVariable).items()
        if isinstance(method, FunctionType)
        and ((name.startswith("__") and name not in _OTHER_METHODS) or name in _ASSIGNMENTS)
    ]
    replace_functions(keras.Variable, __getitem__=_element, **dict.fromkeys(names, _operator))
    # `layer.kernel.value.numpy()`, although PyTorch computes gradients of it.
    replace_functions(torch.nn.Parameter, numpy=_array)
    for room in _ROOMS:
        names = [name for name, each in vars(room).items() if isinstance(each, FunctionType)]
        replace_functions(room, **dict.fromkeys(names, _with_numbers))


def _element(original: Callable[..., Any], variable: Any, index: Any) -> Any:
    """Returns a part of a variable; on the host, TensorFlow's forms of an index are valid."""
    if _is_called_by_program() and _is_on_host(value := variable.value):
        if isinstance(index, int) and not -len(value) <= index < len(value):
            raise IndexError(f"{variable.path} has {len(value)} elements, but not number {index}.")
        return tf.constant(value.detach().numpy())[index]
    return original(variable, index)


def _operator(original: Callable[..., Any], *operands: Any, **named: Any) -> Any:
    """Returns the result of an operator of variables, for programs as TensorFlow's tensor."""
    result = original(*operands, **named)
    if _is_called_by_program() and _is_on_host(result):
        return tf.constant(result.detach().numpy())
    return result


def _array(original: Callable[..., Any], value: Any, **kwargs: Any) -> Any:
    return original(value.detach(), **kwargs)


def _is_called_by_program() -> bool:
    """Returns whether the caller of the function that was replaced is no library."""
    name = sys._getframe(3).f_globals.get("__name__", "")
    return not f"{name}.".startswith(_LIBRARIES)


def _with_numbers(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Returns results, which on the host have numbers in spite of their gradients."""
    return keras.tree.map_structure(_with_number, original(*args, **kwargs))


def _with_number(value: Any) -> Any:
    return value.as_subclass(HostTensor) if _is_on_host(value) and value.requires_grad else value


def _is_on_host(value: Any) -> bool:
    """Returns whether a value is a tensor of PyTorch on the host, outside of any capture."""
    is_tensor = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
    if not is_tensor or value.device.type != "cpu":
        return False
    return current_graph() is None and not is_computing() and not in_stateless_scope()
