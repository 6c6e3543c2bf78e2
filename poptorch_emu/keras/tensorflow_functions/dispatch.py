"""Hands TensorFlow's functions on values of the device over to Keras's, by TensorFlow's dispatch.

Values of the device are tensors of PyTorch, or Keras's symbolic ones. What has no row in the tables
is refused where TensorFlow would convert such a value.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, List, Union  # noqa: UP035

import keras
import numpy as np
import torch
from keras import ops

from poptorch_emu.errors import compiler_error
from poptorch_emu.keras.loops.capture_state import current
from poptorch_emu.keras.loops.device_values import is_computing
from poptorch_emu.keras.loops.host_values import to_torch
from poptorch_emu.keras.loops.tensorflow_variables import is_variable, value_of
from poptorch_emu.keras.tensorflow_functions import program_functions
from poptorch_emu.keras.tensorflow_functions.device_shape import give_shapes_methods
from poptorch_emu.keras.tensorflow_functions.function_forms import FORMS
from poptorch_emu.keras.tensorflow_functions.function_table import (
    BINARY,
    OTHERS,
    REDUCTIONS,
    UNARY,
)
from poptorch_emu.keras.tensorflow_functions.network_forms import NETWORK_FORMS
from poptorch_emu.keras.tensorflow_functions.numpy_operands import answer_arrays
from poptorch_emu.torch_versions import FakeTensor, pytree
from poptorch_emu.troubleshooting import Topic

_DEVICE = Union[torch.Tensor, keras.KerasTensor, keras.Variable]  # noqa: UP007 (TensorFlow takes this form.)
_DISPATCH = "tensorflow.python.util.dispatch"
# Parameters that are lists of tensors.
_LISTS = {
    "concat": "values", "stack": "values", "math.add_n": "inputs",
    "clip_by_global_norm": "t_list", "linalg.global_norm": "t_list",
}  # fmt: skip
_TYPES_OF_TENSORFLOW = "tensorflow.python.framework.dtypes"
_TYPE_NAMES = ("float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
_TYPES = {"dtype", "output_type"}
_OF_HOST = {
    "axis", "axes", "begin", "batch_dims", "data_format", "depth", "dilations", "dim", "direction",
    "k", "keepdims", "ksize", "mode", "multiples", "name", "noise_shape", "num", "ord", "padding",
    "num_or_size_splits", "num_segments", "paddings", "perm", "repeats", "shape", "shift", "size",
    "stable", "strides", "conjugate", "sorted",
}  # fmt: skip
_WRAPPERS = {"wrapper", "error_handler", "op_dispatch_handler", "binary_op_wrapper"}


@cache
def install(tf: Any) -> None:
    """Registers all functions once in a process."""
    rows = {
        **{name: _by_position(target, 1) for name, target in UNARY.items()},
        **{name: _by_position(target, 2) for name, target in BINARY.items()},
        **{
            name: _by_name(target, "input_tensor axis keepdims")
            for name, target in REDUCTIONS.items()
        },
        **{name: _by_name(*row) for name, row in OTHERS.items()},
        **{name: _by_parameters(form) for name, form in {**FORMS, **NETWORK_FORMS}.items()},
        "shape": _by_parameters(program_functions.shape(tf)),
        "size": _by_parameters(program_functions.size(tf)),
        "rank": _by_parameters(program_functions.rank(tf)),
    }
    # TensorFlow's own tensors need it not.
    for kind in (torch.Tensor, keras.KerasTensor, keras.Variable, tf.Variable):
        importlib.import_module(_DISPATCH).register_dispatchable_type(kind)
    for name, call in rows.items():
        _register(tf, name, call)
    for name in ("eq", "ne"):
        _compare_variables(tf, name)
    program_functions.replace(tf)
    give_shapes_methods()
    answer_arrays()
    tf.register_tensor_conversion_function(torch.Tensor, _converted)
    for kind in (tf.Tensor, tf.Variable):
        kind.__torch_function__ = classmethod(_called_by_torch)
    known = importlib.import_module(_TYPES_OF_TENSORFLOW)._ANY_TO_TF
    known.update({getattr(torch, name): getattr(tf, name) for name in _TYPE_NAMES})


# From the arguments by their names in TensorFlow to a result.
_Call = Callable[[dict[str, Any]], Any]


def _by_position(name: str, count: int) -> _Call:
    function = getattr(ops, name)
    return lambda given: function(*list(given.values())[:count])


def _by_name(name: str, parameters: str) -> _Call:
    function = getattr(ops, name)
    return lambda given: function(*(given[each] for each in parameters.split()))


def _by_parameters(form: Callable[..., Any]) -> _Call:
    known = inspect.signature(form).parameters
    return lambda given: form(**{name: each for name, each in given.items() if name in known})


def _function_of(tf: Any, path: str) -> Any:
    for name in path.split("."):
        tf = getattr(tf, name)
    return tf


def _register(tf: Any, name: str, call: _Call) -> None:
    """Makes a function of TensorFlow take values of the device for each of its tensors."""
    function = _function_of(tf, name)
    signature = inspect.signature(function)
    listed = _LISTS.get(name)
    element = Union[_DEVICE, tf.Tensor, np.ndarray, int, float, None]  # noqa: UP007
    single = Union[_DEVICE, tf.Variable]  # noqa: UP007
    kinds = {
        each: List[element] if each == listed else single  # noqa: UP006
        for each in signature.parameters
        if each not in _OF_HOST | _TYPES
    }

    def handle(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        if not any(map(_is_of_device, _leaves(given.arguments.values()))):
            return NotImplemented
        return call({each: _argument(tf, each, x) for each, x in given.arguments.items()})

    signatures = ({each: kind} for each, kind in kinds.items())
    tf.experimental.dispatch_for_api(function, *signatures)(handle)


def _compare_variables(tf: Any, name: str) -> None:
    """Makes `==` or `!=` of TensorFlow's variables take values of the device."""
    method, function = f"__{name}__", getattr(tf.__operators__, name)
    own = getattr(tf.Variable, method)

    def compare(variable: Any, other: Any) -> Any:
        is_of_host = not (_is_of_device(variable) or _is_of_device(other))
        return own(variable, other) if is_of_host else function(variable, other)

    setattr(tf.Variable, method, compare)


def _is_of_device(value: Any) -> bool:
    """Returns whether a value is the device's; variables are, while it computes."""
    if is_variable(value):
        return current() is not None
    kinds = (torch.Tensor, keras.KerasTensor, *((keras.Variable,) if is_computing() else ()))
    return isinstance(value, kinds)


def _leaves(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _leaves(value)
        else:
            yield value


def _argument(tf: Any, name: str, value: Any) -> Any:
    """Returns an argument as Keras takes it."""
    if name in _TYPES:
        return None if value is None else keras_type(value)
    if name in _OF_HOST:
        return _mapped(value, lambda leaf: _plain(tf, leaf, is_tensor=False))
    if isinstance(value, (list, tuple)) and not any(map(_is_of_device, value)):
        value = np.asarray(value)
    return _mapped(value, lambda leaf: _plain(tf, leaf, is_tensor=True))


def _mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, (list, tuple)):
        return [_mapped(each, function) for each in value]
    return function(value)


def _plain(tf: Any, value: Any, *, is_tensor: bool) -> Any:
    """Returns a value of the host as a number, or as an array or a list."""
    if isinstance(value, keras.Variable):
        return ops.convert_to_tensor(value)
    if current() is not None and is_variable(value):
        return value_of(value)
    if isinstance(value, (tf.Tensor, tf.Variable)):
        value = value.numpy()
    if isinstance(value, tf.TensorShape):
        return value.as_list()
    if not isinstance(value, (np.ndarray, np.generic)):
        return value
    if value.ndim == 0 or not is_tensor:
        return value.tolist()
    return value.astype(np.float32) if value.dtype == np.float64 else value


def keras_type(value: Any) -> str:
    """Returns the name of a type of TensorFlow, NumPy or PyTorch, as Keras calls it."""
    name = getattr(value, "name", None) or getattr(value, "__name__", None) or str(value)
    name = {"bool_": "bool", "float": "float32", "int": "int32"}.get(name, name)
    name = name.removeprefix("torch.").removesuffix("_ref")
    return "float32" if name == "float64" else name


def _called_by_torch(
    kind: type, function: Any, types: Any, args: Any = (), kwargs: Any = None
) -> Any:
    """Runs an operation of PyTorch that has met constants of TensorFlow, as `device * one`."""
    leaves = pytree.tree_leaves((args, kwargs))
    device = next(leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor))

    def own(value: Any) -> Any:
        if current() is not None and is_variable(value):
            return value_of(value)
        is_foreign = hasattr(value, "numpy") and not isinstance(value, torch.Tensor)
        return to_torch(value).to(device) if is_foreign else value

    return function(*pytree.tree_map(own, args), **pytree.tree_map(own, kwargs or {}))


def _converted(
    value: torch.Tensor, dtype: Any = None, name: str | None = None, as_ref: bool = False
) -> Any:
    """Returns the tensor of TensorFlow for one of PyTorch on the host.

    Raises:
        Error: it is on the device.
    """
    is_on_host = not isinstance(value, FakeTensor) and value.device.type == "cpu"
    if is_on_host and current() is None:
        return sys.modules["tensorflow"].constant(value.detach().numpy(), dtype)
    function = _name_of_function()
    if function == "range":
        raise compiler_error(
            "tf.range is given a value on the IPU, but how often a loop runs, and the shape of a "
            "tensor, are known when it is compiled. Pass a number of Python to the function in "
            f"args=[...], not a tensor; {Topic.TENSORFLOW_FUNCTION}"
        )
    near = f"keras.ops.{function}" if hasattr(ops, function) else "a function of keras.ops"
    raise compiler_error(
        f"tf's {function} is not offered for values on the IPU. Use {near}, or compute it on the "
        f"host from what an IPUOutfeedQueue or the model returns; {Topic.TENSORFLOW_FUNCTION}"
    )


def _name_of_function() -> str:
    """Returns which function of TensorFlow the program has called."""
    frame: Any = sys._getframe(2)
    name = "this function"
    folder = str(Path(sys.modules["tensorflow"].__file__ or "").parent)
    while frame is not None and frame.f_code.co_filename.startswith(folder):
        if frame.f_code.co_name not in _WRAPPERS:
            name = frame.f_code.co_name
        frame = frame.f_back
    return name


__all__ = ["install", "keras_type"]
