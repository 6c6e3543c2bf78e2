"""Arrays of NumPy in operations with values of the device: they are constants there.

NumPy asks the operand of an array what an operation means. Without an answer it would take the
elements of the value, which a device has only when it runs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import torch
from keras import ops

from poptorch_emu.errors import compiler_error
from poptorch_emu.keras.loops.device_values import is_computing
from poptorch_emu.troubleshooting import Topic

# Where Keras has another name than NumPy, as it has for few.
_NAMES = {"remainder": "mod", "invert": "bitwise_not"}
# What these say does not depend on elements.
_OF_SHAPES = {"shape", "ndim", "size"}
# Operators of numbers with tensors of PyTorch.
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul,
    "divide": operator.truediv, "floor_divide": operator.floordiv, "remainder": operator.mod,
    "power": operator.pow, "less": operator.lt, "less_equal": operator.le,
    "greater": operator.gt, "greater_equal": operator.ge, "equal": operator.eq,
    "not_equal": operator.ne,
}  # fmt: skip


def answer_arrays() -> None:
    """Lets tensors of PyTorch and of Keras say what an operation with an array means."""
    for kind in (torch.Tensor, keras.Variable, keras.KerasTensor):
        setattr(kind, "__array_ufunc__", operation)  # noqa: B010
    setattr(torch.Tensor, "__array_function__", function_of_arrays)  # noqa: B010
    # These PyTorch makes itself, on the host.
    for name, function in {"__eq__": np.equal, "__ne__": np.not_equal}.items():
        _compare_arrays(name, function)


def _compare_arrays(name: str, function: Any) -> None:
    own = getattr(torch.Tensor, name)

    def compare(value: torch.Tensor, other: Any) -> Any:
        if isinstance(other, np.ndarray) and is_computing():
            return function(value, other)
        return own(value, other)

    setattr(torch.Tensor, name, compare)


def operation(self: Any, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """Computes a universal function of NumPy."""
    if not (is_computing() or isinstance(self, keras.KerasTensor)):
        return _on_host(ufunc, method, inputs, kwargs)
    name = _NAMES.get(ufunc.__name__, ufunc.__name__)
    function = getattr(ops, name, None)
    if function is None or method != "__call__" or kwargs:
        raise _refusal(f"{ufunc.__name__}{'' if method == '__call__' else '.' + method}", kwargs)
    return function(*_constants(inputs))


def function_of_arrays(self: Any, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """Refuses another function of NumPy for a value of the device."""
    if is_computing() and function.__name__ not in _OF_SHAPES:
        raise _refusal(function.__name__)
    return function._implementation(*args, **kwargs)


def _constants(inputs: Iterable[Any]) -> list[Any]:
    """Returns operands as Keras takes them: arrays have the type of a tensor with a point."""
    values = [each.value if isinstance(each, keras.Variable) else each for each in inputs]
    tensors = [each for each in values if isinstance(each, (torch.Tensor, keras.KerasTensor))]
    kind = keras.backend.standardize_dtype(tensors[0].dtype)

    def constant(value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        if not isinstance(value, np.ndarray):
            return value
        if "float" in kind:
            return ops.convert_to_tensor(value, kind)
        return value.astype(np.float32) if value.dtype == np.float64 else value

    return list(map(constant, values))


def _on_host(ufunc: Any, method: str, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Computes with tensors that have elements, as NumPy and PyTorch do by themselves."""
    is_tensor = any(isinstance(each, torch.Tensor) for each in inputs)
    own = _OPERATORS.get(ufunc.__name__)
    if is_tensor and own and not kwargs and any(isinstance(each, np.generic) for each in inputs):
        return own(*(each.item() if isinstance(each, np.generic) else each for each in inputs))
    kinds = (torch.Tensor, keras.Variable)
    arrays = [np.asarray(each) if isinstance(each, kinds) else each for each in inputs]
    result = getattr(ufunc, method)(*arrays, **kwargs)
    if not is_tensor or result is None:
        return result
    if isinstance(result, tuple):
        return tuple(map(torch.as_tensor, result))
    return torch.as_tensor(result)


def _refusal(name: str, kwargs: Mapping[str, Any] | None = None) -> Exception:
    own = _NAMES.get(name, name)
    near = f"keras.ops.{own}" if hasattr(ops, own) else "a function of tf or keras.ops"
    given = f" with {', '.join(kwargs)}" if kwargs else ""
    error: Exception = compiler_error(
        f"numpy.{name}{given} takes arrays of the host, but it is given a value on the IPU. Use "
        f"{near}, or compute it on the host from what an IPUOutfeedQueue or the model returns; "
        f"{Topic.TENSORFLOW_FUNCTION}"
    )
    return error
