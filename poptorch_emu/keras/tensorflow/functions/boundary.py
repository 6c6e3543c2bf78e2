"""Converts values between TensorFlow programs and Keras on PyTorch.

Layers, losses and functions in a user's program see TensorFlow's symbolic tensors. Keras itself
sees tensors of PyTorch.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
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
from poptorch_emu.keras.tensorflow.functions import unrolled_control
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
    _convert_for_keras()
    _SymbolicCalls().register()
    unrolled_control.install()
    _note_handles()
    _call_inside()
    give_shapes_methods()
    answer_arrays()
    ops.SymbolicTensor.__array_ufunc__ = _operation_of_numpy
    ops.SymbolicTensor.__array_function__ = function_of_arrays
    ops.SymbolicTensor.__bool__ = _truth_of
    tf.GradientTape.gradient = _for_functions(tf.GradientTape.gradient)
    add_loss = keras.layers.Layer.add_loss
    keras.layers.Layer.add_loss = lambda layer, loss: add_loss(layer, left(loss))
    for owner in (keras.layers.Layer, keras.losses.Loss):
        owner.__call__ = _called_by_program(owner.__call__)
    keras.layers.Lambda.call = for_program(keras.layers.Lambda.call)
    _wrap_functions(LossFunctionWrapper)
    _wrap_functions(MeanMetricWrapper)
    _wrap_calls()


def for_program(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a user's function, wrapped to receive symbolic tensors and return PyTorch's."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with device_graph(), _depth(0):
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


class _depth:  # noqa: N801
    """Sets the nesting depth of Keras calls in this thread, during a context."""

    def __init__(self, depth: int) -> None:
        self._depth = depth

    def __enter__(self) -> None:
        self._before = getattr(_local, "depth", 0)
        _local.depth = self._depth

    def __exit__(self, *error: Any) -> None:
        _local.depth = self._before


def _called_by_program(call: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method of Keras that accepts symbolic tensors and returns them to a program."""

    @functools.wraps(call)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        depth = getattr(_local, "depth", 0)
        if current_graph() is None:
            with _depth(depth + 1):
                result = call(self, *args, **kwargs)
            return result if depth else _for_host(result, args)
        with _depth(depth + 1):
            result = call(self, *left(args), **left(kwargs))
        return result if depth else entered(result)

    return called


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


def _wrap_calls() -> None:
    """Wraps the `call` of each class that a program defines, so that it sees symbolic tensors."""
    make = Operation.__new__

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        for each in cls.__mro__:
            own = vars(each).get("call")
            is_foreign = not f"{each.__module__}.".startswith(_OWN)
            if is_foreign and isinstance(own, FunctionType) and not _is_for_program(own):
                each.call = for_program(own)
            elif is_foreign and hasattr(own, "python_function"):
                each.call = for_program(own.python_function)
        return make(cls, *args, **kwargs)

    Operation.__new__ = new
    loss_call = keras.losses.Loss.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        own = type(self).call
        if not f"{type(self).__module__}.".startswith(_OWN) and not _is_for_program(own):
            type(self).call = for_program(own)
        loss_call(self, *args, **kwargs)

    keras.losses.Loss.__init__ = functools.wraps(loss_call)(init)


def _is_for_program(function: Any) -> bool:
    return getattr(function, "is_for_program", False)


def _wrap_functions(kind: Any) -> None:
    """Wraps a user's functions in losses and metrics, so that they see symbolic tensors."""
    init = kind.__init__

    @functools.wraps(init)
    def wrapped(self: Any, fn: Any, *args: Any, **kwargs: Any) -> None:
        module = getattr(fn, "__module__", None) or ""
        if not f"{module}.".startswith(_OWN) and not _is_for_program(fn):
            fn = for_program(getattr(fn, "python_function", fn))
        init(self, fn, *args, **kwargs)

    kind.__init__ = wrapped


def _call_inside() -> None:
    """Makes functions of `tf.function` run as Python if they are called for the device."""
    kind = type(tf.function(lambda: None))
    call = kind.__call__

    @functools.wraps(call)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        leaves = keras.tree.flatten((args, kwargs))
        is_symbolic = any(isinstance(leaf, (keras.KerasTensor, torch.Tensor)) for leaf in leaves)
        if current_graph() is not None:
            return self.python_function(*args, **kwargs)
        return (
            for_program(self.python_function)(*args, **kwargs)
            if is_symbolic
            else call(self, *args, **kwargs)
        )

    kind.__call__ = called


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


def _for_functions(gradient: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method of tapes that refuses models whose gradient the tape cannot know."""

    @functools.wraps(gradient)
    def of_host(self: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        leaves = keras.tree.flatten(sources)
        if current() is None and any(isinstance(leaf, keras.Variable) for leaf in leaves):
            raise refusal(
                "GradientTape.gradient for weights of Keras, outside of IPUStrategy.run",
                "Models compute with PyTorch. Write the training step as a function, and call "
                "strategy.run(function, args=[...])",
            )
        return gradient(self, target, sources, *args, **kwargs)

    return of_host


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
