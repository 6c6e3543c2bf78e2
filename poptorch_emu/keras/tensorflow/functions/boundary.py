"""Converts values between TensorFlow programs and Keras on PyTorch.

Layers, losses and functions in a user's program see TensorFlow's symbolic tensors. Keras itself
sees tensors of PyTorch.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import torch
from keras.src.backend.torch import core as keras_core
from keras.src.losses.losses import LossFunctionWrapper
from keras.src.metrics.reduction_metrics import MeanMetricWrapper
from keras.src.ops.operation import Operation
from tensorflow.python.framework import ops
from tensorflow.python.ops import resource_variable_ops
from tensorflow.python.util import dispatch, tf_export

from poptorch_emu.keras.capture.capture_state import current
from poptorch_emu.keras.capture.device_values import is_computing
from poptorch_emu.keras.capture.host_values import HostTensor, to_torch
from poptorch_emu.keras.capture.symbolic_values import entered, left
from poptorch_emu.keras.capture.tensorflow_variables import value_of
from poptorch_emu.keras.replacement import replace_functions
from poptorch_emu.keras.tensorflow.functions import host_expressions, unrolled_control
from poptorch_emu.keras.tensorflow.functions.device_graph import current_graph, device_graph
from poptorch_emu.keras.tensorflow.functions.device_shape import give_shapes_methods
from poptorch_emu.keras.tensorflow.functions.numpy_operands import (
    answer_arrays,
    function_of_arrays,
    operation,
)
from poptorch_emu.keras.tensorflow.functions.raw_call import refusal
from poptorch_emu.torch_versions import FakeTensor, pytree

_OWN = ("keras.", "poptorch_emu.", "tensorflow.")
_local = threading.local()


@functools.cache
def install() -> None:
    """Connects TensorFlow and Keras, once in a process."""
    for kind, function in {
        torch.Tensor: _from_torch,
        keras.Variable: _from_variable,
        (list, tuple): _from_list,
    }.items():
        tf.register_tensor_conversion_function(kind, function, priority=10)
    for kind in (tf.Tensor, tf.Variable):
        kind.__torch_function__ = classmethod(_called_by_torch)
    keras.Variable.is_tensor_like = True  # `tf.is_tensor` looks for this name.
    _convert_for_keras()
    _SymbolicCalls().register()
    unrolled_control.install()
    host_expressions.install()
    _note_handles()
    give_shapes_methods()
    answer_arrays()
    ops.SymbolicTensor.__array_ufunc__ = _operation_of_numpy
    ops.SymbolicTensor.__array_function__ = function_of_arrays
    ops.SymbolicTensor.__bool__ = _truth_of
    ops.SymbolicTensor.__len__ = _length_of
    replace_functions(tf.GradientTape, gradient=_gradient)
    replace_functions(type(tf.function(lambda: None)), __call__=_call_function)
    replace_functions(keras.layers.Layer, __call__=_call, add_loss=_add_loss)
    replace_functions(keras.losses.Loss, __call__=_call, __init__=_build_loss)
    keras.layers.Lambda.call = for_program(keras.layers.Lambda.call)
    for kind in (LossFunctionWrapper, MeanMetricWrapper):
        replace_functions(kind, __init__=_build_around_function)
    replace_functions(Operation, __new__=_new_operation)


def for_program(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a user's function, wrapped to receive symbolic tensors and return PyTorch's."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with device_graph(), _at_depth(0):
            return left_on_device(function(*entered(args), **entered(kwargs)))

    call.is_for_program = True  # type: ignore[attr-defined]
    return call


def left_on_device(values: Any) -> Any:
    """Returns a structure with tensors of PyTorch only in place of symbolic tensors."""
    graph = current_graph()

    def leave(value: Any) -> Any:
        found = value if graph is None else graph.left(value)
        return found if found is value else keras.ops.convert_to_tensor(found)

    return keras.tree.map_structure(leave, values)


@contextmanager
def _at_depth(depth: int) -> Iterator[None]:
    """Sets the nesting depth of Keras calls in this thread, during a context."""
    before, _local.depth = getattr(_local, "depth", 0), depth
    try:
        yield
    finally:
        _local.depth = before


def _call(call: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls a layer or a loss with values of PyTorch, and returns symbolic ones to a program."""
    depth = getattr(_local, "depth", 0)
    with _at_depth(depth + 1):
        result = call(self, *left(args), **left(kwargs))
    if depth:
        return result
    return _for_host(result, args) if current_graph() is None else entered(result)


def _add_loss(add_loss: Callable[..., Any], layer: Any, loss: Any) -> None:
    add_loss(layer, left(loss))


def _for_host(result: Any, given: Any) -> Any:
    """Returns the result of a Keras call on the host with arrays or tensors of TensorFlow."""
    leaves = keras.tree.flatten(given)
    if is_computing() or not any(isinstance(leaf, (np.ndarray, tf.Tensor)) for leaf in leaves):
        return result
    is_of_tensorflow = any(isinstance(leaf, tf.Tensor) for leaf in leaves)

    def number(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.device.type != "cpu":
            return leaf
        if is_of_tensorflow:
            return tf.constant(leaf.detach().numpy())
        return leaf.as_subclass(HostTensor) if leaf.requires_grad else leaf

    return keras.tree.map_structure(number, result)


def _wrapped(function: Any, module: str) -> Any:
    """Returns a user's function, wrapped by `for_program`, and one of a library unchanged."""
    if f"{module}.".startswith(_OWN) or getattr(function, "is_for_program", False):
        return function
    return for_program(getattr(function, "python_function", function))


def _new_operation(make: Callable[..., Any], cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Makes a layer or operation whose `call`, if a program defines it, sees symbolic tensors."""
    for each in cls.__mro__:
        own = vars(each).get("call")
        is_function = isinstance(own, FunctionType) or hasattr(own, "python_function")
        if is_function and (wrapped := _wrapped(own, each.__module__)) is not own:
            each.call = wrapped
    return make(cls, *args, **kwargs)


def _build_loss(build: Callable[..., None], loss: Any, *args: Any, **kwargs: Any) -> None:
    """Builds a loss whose `call`, if a program defines it, sees symbolic tensors."""
    kind = type(loss)
    if (wrapped := _wrapped(kind.call, kind.__module__)) is not kind.call:
        kind.call = wrapped
    build(loss, *args, **kwargs)


def _build_around_function(
    build: Callable[..., None], self: Any, fn: Any, *args: Any, **kwargs: Any
) -> None:
    """Builds a loss or metric around a function; the user's one sees symbolic tensors."""
    build(self, _wrapped(fn, getattr(fn, "__module__", None) or ""), *args, **kwargs)


def _call_function(call: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls a function of `tf.function`; one that is called for the device runs as Python."""
    if current_graph() is not None:
        return self.python_function(*args, **kwargs)
    leaves = keras.tree.flatten((args, kwargs))
    if any(isinstance(leaf, (keras.KerasTensor, torch.Tensor)) for leaf in leaves):
        return for_program(self.python_function)(*args, **kwargs)
    return call(self, *args, **kwargs)


def _note_handles() -> None:
    """Lets graphs of the device find the variables whose handles they use."""
    kind = resource_variable_ops.BaseResourceVariable
    handle = kind.handle.fget

    def noted(variable: Any) -> Any:
        graph = current_graph()
        if graph is not None:
            graph.note_variable(variable)
        return handle(variable)

    kind.handle = property(noted)


def _from_torch(value: Any, dtype: Any = None, name: Any = None, as_ref: bool = False) -> Any:
    graph = current_graph()
    if graph is not None:
        return _of_type(graph.enter(value), dtype, is_number=_is_counter(value))
    if isinstance(value, FakeTensor) or value.device.type != "cpu":
        raise refusal("conversion of a value of the IPU outside of a layer, loss or function")
    return tf.constant(value.detach().numpy(), dtype)


def _operation_of_numpy(self: Any, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """Computes a universal function of NumPy with symbolic tensors."""
    values = [left(each) for each in inputs]
    tensors = [each for each in values if isinstance(each, torch.Tensor)]
    if not tensors:
        return getattr(ufunc, method)(*values, **kwargs)
    return entered(operation(tensors[0], ufunc, method, *values, **kwargs))


def _gradient(
    gradient: Callable[..., Any], tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any
) -> Any:
    """Returns a tape's gradient on the host, unless it is that of a model, which no tape knows."""
    leaves = keras.tree.flatten(sources)
    if current() is None and any(isinstance(leaf, keras.Variable) for leaf in leaves):
        raise refusal(
            "GradientTape.gradient for weights of Keras, outside of IPUStrategy.run",
            "Models compute with PyTorch. Write the training step as a function, and call "
            "strategy.run(function, args=[...])",
        )
    return gradient(tape, target, sources, *args, **kwargs)


def _truth_of(self: Any) -> bool:
    """Returns the truth of a symbolic tensor that is known on the host.

    Raises:
        Error: the device computes it.
        TypeError: the tensor is of another graph (the error is TensorFlow's).
    """
    graph = current_graph()
    value = tf.Tensor.__bool__(self) if graph is None else graph.value_of(self)
    if isinstance(value, torch.Tensor):
        raise refusal(
            "tensor as a condition of Python (if, while, and, or, not, in)",
            "The value is known only while the program runs. Use tf.where, tf.logical_and, "
            "tf.logical_or or tf.logical_not",
        )
    return bool(value)


def _length_of(self: Any) -> int:
    """Returns the first size of a symbolic tensor of the device, which is always known."""
    is_known = current_graph() is not None and self.shape.rank
    return int(self.shape[0]) if is_known else int(tf.Tensor.__len__(self))


def _is_counter(value: torch.Tensor) -> bool:
    """Returns whether a value stands for a Python number, which has no type of its own."""
    return getattr(value, "is_number_of_python", False)


def _of_type(tensor: Any, dtype: Any, *, is_number: bool) -> Any:
    if dtype is None or tensor.dtype == dtype:
        return tensor
    if is_number:
        return tf.cast(tensor, dtype)
    raise ValueError(
        f"A tensor of type {tensor.dtype.name} was given where type {dtype} is expected. Convert "
        "it with tf.cast."
    )


def _from_variable(value: Any, dtype: Any = None, name: Any = None, as_ref: bool = False) -> Any:
    return _from_torch(value.value, dtype)


def _from_list(value: Any, dtype: Any = None, name: Any = None, as_ref: bool = False) -> Any:
    leaves = keras.tree.flatten(value)
    if not any(isinstance(leaf, (torch.Tensor, keras.Variable)) for leaf in leaves):
        return NotImplemented
    return tf.stack([tf.convert_to_tensor(each, dtype) for each in value])


def _convert_for_keras() -> None:
    """Makes Keras's functions accept symbolic tensors and variables of TensorFlow.

    Many modules of Keras hold references to the conversion function, so its code is replaced.
    """
    function = keras_core.convert_to_tensor
    original = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__
    )

    def convert(x: Any, *args: Any) -> Any:
        return original(_for_keras(x), *args)

    keras_core._poptorch_convert = convert
    function.__code__ = _converting.__code__


def _converting(x, dtype=None, sparse=None, ragged=None):  # type: ignore[no-untyped-def]
    return _poptorch_convert(x, dtype, sparse, ragged)  # type: ignore[name-defined] # noqa: F821


def _for_keras(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return left(value)
    if isinstance(value, tf.Variable) and current() is not None:
        return value_of(value)
    if isinstance(value, tf.Tensor) and not isinstance(value, ops.EagerTensor):
        graph = current_graph()
        return value if graph is None else graph.value_of(value)
    return value


def _called_by_torch(
    kind: type, function: Any, types: Any, args: Any = (), kwargs: Any = None
) -> Any:
    """Runs an operation of PyTorch that has operands of TensorFlow, such as `device * one`."""
    leaves = pytree.tree_leaves((args, kwargs))
    devices = [leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)]
    device = devices[0] if devices else keras_core.get_device()

    def own(value: Any) -> Any:
        value = _for_keras(value)
        is_foreign = hasattr(value, "__array__") and not isinstance(value, torch.Tensor)
        return to_torch(value).to(device) if is_foreign else value

    return function(*pytree.tree_map(own, args), **pytree.tree_map(own, kwargs or {}))


class _SymbolicCalls(dispatch.GlobalOpDispatcher):  # type: ignore[misc]
    """Records calls of TensorFlow on a functional model's tensors as operations of the model."""

    def handle(self, op: Any, args: Any, kwargs: Any) -> Any:
        """Handles a function that TensorFlow could not call."""
        leaves = keras.tree.flatten((args, kwargs))
        is_conversion = op in (tf.convert_to_tensor, ops.convert_to_tensor)
        if is_conversion or not any(isinstance(leaf, keras.KerasTensor) for leaf in leaves):
            return self.NOT_SUPPORTED
        is_shape = op.__name__ in ("shape", "shape_v2")
        if is_shape and None not in (shape := leaves[0].shape):
            return tf.constant(tuple(shape))
        return TensorFlowCall(op)(*args, **kwargs)


class TensorFlowCall(Operation):  # type: ignore[misc]
    """One call of a function of TensorFlow in a functional model of Keras."""

    def __init__(self, function: Any, name: str | None = None) -> None:
        """Takes a function, or its name in TensorFlow, for example "nn.relu"."""
        super().__init__(name=name)
        self._function = _found(function) if isinstance(function, str) else function
        self._computed = for_program(self._function)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function."""
        return self._computed(*args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Returns the name of the function."""
        path = tf_export.get_canonical_name_for_symbol(self._function)
        return {"function": path, "name": self.name}


def _found(path: str) -> Any:
    return functools.reduce(getattr, path.split("."), tf)
