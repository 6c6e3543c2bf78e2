"""Lets arrays of NumPy be operands of operations with device values, as constants.

NumPy asks the other operand of an array to compute an operation. Otherwise NumPy would read the
elements of the value, which exist only while the device runs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import torch
from keras import ops

from poptorch_emu.errors import compiler_error
from poptorch_emu.keras.capture.device_values import is_computing
from poptorch_emu.keras.replacement import replace_functions
from poptorch_emu.torch_versions import pytree
from poptorch_emu.troubleshooting import Topic

# Names of functions in Keras that differ from NumPy's.
_NAMES = {"remainder": "mod", "invert": "bitwise_not"}
# Functions of NumPy whose results do not depend on elements.
_OF_SHAPES = {"shape", "ndim", "size"}
# Python operators for ufuncs of NumPy, for tensors of PyTorch with numbers.
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul,
    "divide": operator.truediv, "floor_divide": operator.floordiv, "remainder": operator.mod,
    "power": operator.pow, "less": operator.lt, "less_equal": operator.le,
    "greater": operator.gt, "greater_equal": operator.ge, "equal": operator.eq,
    "not_equal": operator.ne,
}  # fmt: skip


def answer_arrays() -> None:
    """Makes tensors of PyTorch and Keras compute operations with arrays."""
    for kind in (torch.Tensor, keras.Variable, keras.KerasTensor):
        setattr(kind, "__array_ufunc__", operation)  # noqa: B010
    setattr(torch.Tensor, "__array_function__", function_of_arrays)  # noqa: B010
    # PyTorch computes comparisons with arrays itself, on the host.
    comparisons = {"__eq__": partial(_compare, np.equal), "__ne__": partial(_compare, np.not_equal)}
    replace_functions(torch.Tensor, **comparisons)


def _compare(function: Any, own: Any, value: torch.Tensor, other: Any) -> Any:
    is_array = isinstance(other, np.ndarray) and is_computing()
    return function(value, other) if is_array else own(value, other)


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
    """Rejects other functions of NumPy on a value of the device."""
    if is_computing() and function.__name__ not in _OF_SHAPES:
        raise _refusal(function.__name__)
    given = [args, kwargs]
    if not is_computing():
        given = pytree.tree_map_only(torch.Tensor, lambda x: x.detach().numpy(), given)
    return function._implementation(*given[0], **given[1])


def _constants(inputs: Iterable[Any]) -> list[Any]:
    """Returns operands for Keras; arrays get the type of a floating-point tensor."""
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
    """Computes with tensors that have elements, as NumPy and PyTorch usually do."""
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
