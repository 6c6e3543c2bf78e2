"""Converts values between TensorFlow programs and Keras on PyTorch.

Layers, losses and functions in a user's program see TensorFlow's symbolic tensors. Keras itself
sees tensors of PyTorch.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FunctionType, MethodType, ModuleType
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import torch
from keras.src import activations, constraints, regularizers
from keras.src.backend.torch import core as keras_core
from keras.src.backend.torch.trainer import TorchTrainer
from keras.src.losses.losses import LossFunctionWrapper
from keras.src.metrics.reduction_metrics import MeanMetricWrapper
from keras.src.ops import core as core_operations
from keras.src.ops.operation import Operation
from keras.src.saving import object_registration
from keras.src.utils import backend_utils
from tensorflow.python.framework import ops
from tensorflow.python.ops import resource_variable_ops
from tensorflow.python.util import dispatch, tf_export

from poptorch_emu.keras.capture.capture_state import current
from poptorch_emu.keras.capture.device_values import is_computing
from poptorch_emu.keras.capture.host_values import to_torch
from poptorch_emu.keras.capture.symbolic_values import entered, left
from poptorch_emu.keras.capture.tensorflow_variables import value_of
from poptorch_emu.keras.replacement import replace_functions
from poptorch_emu.keras.tensorflow.functions import unrolled_control
from poptorch_emu.keras.tensorflow.functions.calls_on_host import (
    call_keras,
    call_optimizer,
    call_program,
    is_called,
    to_tensorflow,
)
from poptorch_emu.keras.tensorflow.functions.device_graph import current_graph, device_graph
from poptorch_emu.keras.tensorflow.functions.device_shape import give_shapes_methods
from poptorch_emu.keras.tensorflow.functions.numpy_operands import (
    answer_arrays,
    function_of_arrays,
    operation,
)
from poptorch_emu.keras.tensorflow.functions.program_calls import (
    answer_programs,
    is_called_by_program,
    is_library,
)
from poptorch_emu.keras.tensorflow.functions.raw_call import OUTSIDE, refusal
from poptorch_emu.keras.tensorflow.functions.result_forms import as_on_tensorflow
from poptorch_emu.keras.tensorflow.functions.weight_value import WeightValue, give_weights_values
from poptorch_emu.torch_versions import FakeTensor, pytree

# Methods that a program may override, and that Keras calls with tensors.
_OVERRIDDEN = (
    "__call__", "call", "compute_loss", "compute_mask", "compute_metrics", "predict_step", "result",
    "test_step", "train_step", "update_state", "update_step",
)  # fmt: skip
# Functions of Keras whose results only TensorFlow's function of this name has.
_OF_TENSORFLOW = {"custom_gradient": tf.custom_gradient, "is_tensor": tf.is_tensor}
# Functions of Keras on PyTorch that take tensors only, and what TensorFlow's take beside them.
_ONLY_OF_TENSORS = {
    "conj", "conjugate", "fold", "full_like", "imag", "real", "shape", "size", "stop_gradient",
    "unfold", "unstack",
}  # fmt: skip
_NO_TENSORS = (np.ndarray, list, tuple, keras.Variable)
# Attributes of layers that hold functions or objects which a program may define.
_FUNCTIONS = [
    "activation", "recurrent_activation", "activity_regularizer",
    *(f"{weight}_{kind}" for weight in ("kernel", "bias", "recurrent", "embeddings")
      for kind in ("regularizer", "constraint")),
]  # fmt: skip


@functools.cache
def install(*modules: ModuleType) -> None:
    """Connects TensorFlow and Keras, once in a process.

    Args:
        modules: modules whose functions compute with tensors, beside those of Keras.
    """
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
    _note_handles()
    answer_arrays()
    ops.SymbolicTensor.__array_ufunc__ = _operation_of_numpy
    ops.SymbolicTensor.__array_function__ = function_of_arrays
    ops.SymbolicTensor.__bool__ = _truth_of
    ops.SymbolicTensor.__len__ = _length_of
    for kind in (float, int):
        setattr(ops.SymbolicTensor, f"__{kind.__name__}__", _number_of(kind))
    replace_functions(tf.GradientTape, gradient=_gradient)
    replace_functions(type(tf.function(lambda: None)), __call__=_call_function)
    replace_functions(keras.losses.Loss, __init__=_build)
    replace_functions(keras.metrics.Metric, __init__=_build)
    replace_functions(keras.optimizers.Optimizer, __init__=_build)
    for kind in (LossFunctionWrapper, MeanMetricWrapper):
        replace_functions(kind, __init__=_build_around_function)
    replace_functions(Operation, __new__=_new_operation)
    replace_functions(keras.layers.Layer, _get_regularization_losses=_regularization_losses)
    replace_functions(backend_utils, in_tf_graph=_is_in_other_graph)
    for room in (activations, regularizers, constraints):
        replace_functions(room, get=_function_or_object)
    for name in _FUNCTIONS:
        setattr(keras.layers.Layer, name, _AttributeForProgram(name))
    for name in ("mean", "variance"):
        setattr(keras.layers.Normalization, name, _AttributeForProgram(name))
    steps = ("make_train_function", "make_test_function", "make_predict_function")
    replace_functions(TorchTrainer, **dict.fromkeys(steps, _make_in_graph))
    keras.layers.Lambda.call = for_program(keras.layers.Lambda.call)
    answer_programs(_answer, modules)
    give_weights_values()
    give_shapes_methods()


def for_program(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a user's function, which Keras calls with tensors of PyTorch.

    It receives and returns TensorFlow's tensors: symbolic ones for the device and in `fit`, eager
    ones on the host.
    """
    computed = on_device(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_called_by_program(sys._getframe(1)):
            return function(*args, **kwargs)
        if current_graph() is None and not is_computing() and is_called():
            return call_program(function, args, kwargs)
        return computed(*args, **kwargs)

    call.is_for_program = True  # type: ignore[attr-defined]
    names = object_registration.GLOBAL_CUSTOM_NAMES
    if (
        isinstance(function, FunctionType) and function in names
    ):  # Keras saves functions by their names.
        names[call] = names[function]
    return call


def on_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a user's function that computes with tensors of PyTorch, by symbolic ones."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with device_graph():
            return left_on_device(function(*entered(args), **entered(kwargs)))

    return call


def left_on_device(values: Any) -> Any:
    """Returns a structure with tensors of PyTorch only in place of symbolic tensors."""
    graph = current_graph()

    def leave(value: Any) -> Any:
        found = value if graph is None else graph.left(value)
        return found if found is value else keras.ops.convert_to_tensor(found)

    return keras.tree.map_structure(leave, values)


def _answer(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Calls a function of Keras for a program, and returns TensorFlow's tensors."""
    name = function.__name__
    if name in _OF_TENSORFLOW:
        return _OF_TENSORFLOW[name](*args, **kwargs)
    if isinstance(args[0] if args else None, keras.Variable) and len(args) == 1 and not kwargs:
        if name in ("array", "convert_to_tensor"):
            return args[0]
        if name == "__pos__":
            return WeightValue(args[0])
    if name in _ONLY_OF_TENSORS and args and isinstance(args[0], _NO_TENSORS):
        args = keras.ops.convert_to_tensor(args[0]), *args[1:]
    if function.__module__ == "keras.src.ops.core":
        args, kwargs = _with_functions((args, kwargs))
        # PyTorch's tensors of `vectorized_map` have no numbers that TensorFlow could read.
        function = core_operations.map if name == "vectorized_map" else function
    if current_graph() is not None:
        found = entered(function(*left(args), **left(kwargs)))
    elif is_computing():
        return function(*args, **kwargs)
    else:
        is_of_optimizer = function.__module__.startswith("keras.src.optimizers.")
        found = (call_optimizer if is_of_optimizer else call_keras)(function, args, kwargs)
    return as_on_tensorflow(function, (args, kwargs), found)


def _with_functions(values: Any) -> Any:
    """Returns a structure with functions of a program wrapped by `for_program`."""
    return keras.tree.map_structure(lambda x: _wrapped(x) if _is_function(x) else x, values)


def _is_function(value: Any) -> bool:
    kinds = (FunctionType, MethodType, functools.partial)
    return isinstance(value, kinds) or hasattr(value, "python_function")


def _wrapped(function: Any) -> Any:
    """Returns a function, wrapped by `for_program` unless it is of Keras or PyTorch."""
    plain = getattr(function, "python_function", function)
    inner = getattr(plain, "func", plain)  # That of functools.partial.
    names = getattr(inner, "__globals__", {})  # Of the code, also if functools.wraps was used.
    module = names.get("__name__") or getattr(inner, "__module__", None) or ""
    if is_library(module) or getattr(function, "is_for_program", False):
        return function
    wrapped = for_program(plain)
    wrapped.of_program = function  # type: ignore[attr-defined]
    return wrapped


def _give_tensors(kind: type) -> None:
    """Lets methods of a class, if a program defines them, receive TensorFlow's tensors."""
    for each in kind.__mro__:
        for name in _OVERRIDDEN:
            own = vars(each).get(name)
            if _is_function(own) and not is_library(each.__module__):
                setattr(each, name, _wrapped(own))


def _new_operation(make: Callable[..., Any], cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Makes a layer, model or operation."""
    _give_tensors(cls)
    return make(cls, *args, **kwargs)


def _build(build: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    """Builds a loss, a metric or an optimizer."""
    _give_tensors(type(self))
    build(self, *args, **kwargs)


def _build_around_function(
    build: Callable[..., None], self: Any, fn: Any, *args: Any, **kwargs: Any
) -> None:
    """Builds a loss or metric around a function, which the program may define."""
    build(self, _wrapped(fn), *args, **kwargs)


def _function_or_object(get: Callable[..., Any], identifier: Any) -> Any:
    """Returns what a text, function or object stands for, such as an activation."""
    found = get(identifier)
    if _is_function(found):
        return _wrapped(found)
    _give_tensors(type(found))
    return found


def _regularization_losses(original: Any, layer: Any) -> list[Any]:
    """Returns the losses of a layer's weights; regularizers get variables, as in TensorFlow."""
    return [v.regularizer(v) for v in layer.trainable_weights if v.regularizer is not None]


def _is_in_other_graph(is_in_graph: Callable[[], bool]) -> bool:
    """Returns whether TensorFlow builds a graph in which Keras's layers must use TensorFlow."""
    return is_in_graph() and current_graph() is None


class _AttributeForProgram:
    """An attribute of layers: the program gets its own function, or TensorFlow's tensor."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, layer: Any, kind: type | None = None) -> Any:
        if layer is None or self._name not in vars(layer):
            raise AttributeError(self._name)
        found = vars(layer)[self._name]
        if not is_called_by_program(sys._getframe(1)):
            return found
        found = getattr(found, "of_program", found)
        return to_tensorflow(found) if current_graph() is None else entered(found)

    def __set__(self, layer: Any, value: Any) -> None:
        vars(layer)[self._name] = value

    def __delete__(self, layer: Any) -> None:
        del vars(layer)[self._name]


def _make_in_graph(make: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Makes the function of a model on the host that runs a step; as in TensorFlow, in a graph."""
    result = make(model, *args, **kwargs)
    for name in ("train_function", "test_function", "predict_function"):
        function = getattr(model, name, None)
        if isinstance(function, FunctionType) and not hasattr(function, "is_in_graph"):
            setattr(model, name, _in_graph(function))
    return result


def _in_graph(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any) -> Any:
        with device_graph():
            return function(*args)

    call.is_in_graph = True  # type: ignore[attr-defined]
    return call


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
            "GradientTape.gradient for weights of Keras",
            "Models compute with PyTorch. Write the training step as a function, and call "
            "strategy.run(function, args=[...])",
            OUTSIDE,
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


def _number_of(kind: type) -> Callable[[Any], Any]:
    """Returns a method that converts a symbolic tensor to a number, if the host knows it."""

    def convert(self: Any) -> Any:
        graph = current_graph()
        if graph is None:
            raise TypeError(f"{kind.__name__}() of a symbolic tensor of another function")
        value = graph.value_of(self)
        if isinstance(value, torch.Tensor):
            raise refusal(
                f"{kind.__name__}() of a tensor",
                "The value is known only while the program runs. Return it from the function, or "
                "send it to an IPUOutfeedQueue",
            )
        return kind(value)

    return convert


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
    if isinstance(value, WeightValue):
        return value.weight
    if isinstance(value, (list, tuple)):
        return left(value)
    if isinstance(value, tf.Variable) and current() is not None:
        return value_of(value)
    if isinstance(value, tf.Tensor) and not isinstance(value, ops.EagerTensor):
        graph = current_graph()
        if graph is None:
            raise refusal(
                "graph (of tf.function or Dataset.map) that calls Keras",
                "Take @tf.function off, or let the device run the function: strategy.run(function)",
                OUTSIDE,
            )
        return graph.value_of(value)
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
