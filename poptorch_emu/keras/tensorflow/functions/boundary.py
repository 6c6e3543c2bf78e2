"""Converts values between TensorFlow programs and Keras on PyTorch.

Layers, losses and functions in a user's program see TensorFlow's symbolic tensors. Keras itself
sees tensors of PyTorch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import torch
from keras.src.backend.torch import core as keras_core
from keras.src.ops import core as core_operations
from keras.src.ops.operation import Operation
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
from poptorch_emu.keras.tensorflow.functions import program_functions, unrolled_control
from poptorch_emu.keras.tensorflow.functions.calls_on_host import (
    call_keras,
    call_optimizer,
)
from poptorch_emu.keras.tensorflow.functions.device_graph import current_graph
from poptorch_emu.keras.tensorflow.functions.device_shape import give_shapes_methods
from poptorch_emu.keras.tensorflow.functions.numpy_operands import (
    answer_arrays,
    function_of_arrays,
    operation,
)
from poptorch_emu.keras.tensorflow.functions.program_calls import answer_programs
from poptorch_emu.keras.tensorflow.functions.program_functions import (
    for_program,
    is_function,
    wrapped,
)
from poptorch_emu.keras.tensorflow.functions.raw_call import OUTSIDE, refusal
from poptorch_emu.keras.tensorflow.functions.result_forms import as_on_tensorflow
from poptorch_emu.keras.tensorflow.functions.weight_value import WeightValue, give_weights_values
from poptorch_emu.torch_versions import FakeTensor, pytree

# Functions of Keras that programs call as TensorFlow's own functions of the same names.
_OF_TENSORFLOW = {"custom_gradient": tf.custom_gradient, "is_tensor": tf.is_tensor}
# Functions that take only tensors in Keras on PyTorch. On TensorFlow they also take these kinds.
_ONLY_OF_TENSORS = {
    "conj", "conjugate", "fold", "full_like", "imag", "real", "shape", "size", "stop_gradient",
    "unfold", "unstack",
}  # fmt: skip
_NO_TENSORS = (np.ndarray, list, tuple, keras.Variable)


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
    program_functions.install()
    replace_functions(keras.layers.Layer, _get_regularization_losses=_regularization_losses)
    replace_functions(backend_utils, in_tf_graph=_is_in_other_graph)
    answer_programs(_answer, modules)
    give_weights_values()
    give_shapes_methods()


def _answer(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Calls a function of Keras for a program, and returns TensorFlow's tensors."""
    name, is_operation = function.__name__, function.__module__.startswith("keras.src.ops.")
    if isinstance(args[0] if args else None, keras.Variable) and len(args) == 1 and not kwargs:
        if name == "__pos__":
            return WeightValue(args[0])
        if is_operation and name in ("array", "convert_to_tensor"):
            return args[0]
    if is_operation and name in _OF_TENSORFLOW:
        return _OF_TENSORFLOW[name](*args, **kwargs)
    if is_operation and name in _ONLY_OF_TENSORS and args and isinstance(args[0], _NO_TENSORS):
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
    return keras.tree.map_structure(lambda x: wrapped(x) if is_function(x) else x, values)


def _regularization_losses(original: Any, layer: Any) -> list[Any]:
    """Returns the losses of a layer's weights; regularizers get variables, as in TensorFlow."""
    return [v.regularizer(v) for v in layer.trainable_weights if v.regularizer is not None]


def _is_in_other_graph(is_in_graph: Callable[[], bool]) -> bool:
    """Returns whether TensorFlow builds a graph that is not the device's, as in Dataset.map."""
    return is_in_graph() and current_graph() is None


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
    weights = (keras.Variable, WeightValue)
    if current() is None and any(isinstance(leaf, weights) for leaf in leaves):
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
