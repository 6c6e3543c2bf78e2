"""A graph of TensorFlow whose operations PyTorch computes as soon as they are added.

A program gets TensorFlow's own symbolic tensors. A tensor of the graph is either on the device or
known on the host. TensorFlow itself computes operations whose inputs are all known, so that shapes
and axes are numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import torch
from keras.src.backend import get_keras_mask, set_keras_mask
from tensorflow.python.eager import context, execute
from tensorflow.python.framework import func_graph, ops

from poptorch_emu.keras.capture import capture_state
from poptorch_emu.keras.capture.host_values import to_torch
from poptorch_emu.keras.capture.integers import check_integers
from poptorch_emu.keras.tensorflow.functions import (
    elementwise_operators,
    network_operators,
    reduction_operators,
    shape_operators,
    stateful_operators,
)
from poptorch_emu.keras.tensorflow.functions.raw_call import RawCall, Row, refusal
from poptorch_emu.keras.tensorflow.functions.weight_value import WeightValue
from poptorch_emu.torch_versions import FakeTensor

ROWS: dict[str, Row] = {
    **elementwise_operators.ROWS,
    **network_operators.ROWS,
    **reduction_operators.ROWS,
    **shape_operators.ROWS,
}
# Operations that compute nothing, or whose results are set separately.
_WITHOUT_EFFECT = {"NoOp", "Placeholder", "PlaceholderWithDefault"}


class DeviceGraph(func_graph.FuncGraph):  # type: ignore[misc]
    """A graph that computes each operation when it is added."""

    def __init__(self) -> None:
        super().__init__("on_ipu")
        self._known: dict[str, Any] = {}  # Tensors of PyTorch or the host, by symbolic names.
        self._entered: dict[int, tuple[torch.Tensor, Any]] = {}
        self._variables: dict[int, Any] = {}  # Variables of TensorFlow, by their handles' ids.
        self._forbidding = ""

    def enter(self, value: torch.Tensor) -> Any:
        """Returns the symbolic tensor that stands for a tensor of PyTorch."""
        found = self._entered.get(id(value))
        if found is None:
            with self.as_default():
                kind = tf.as_dtype(str(value.dtype).removeprefix("torch."))
                entered = tf.compat.v1.placeholder(kind, tuple(value.shape))
            self._known[entered.name] = value
            found = self._entered[id(value)] = (value, entered)
        mask = get_keras_mask(value)
        if mask is not None:
            set_keras_mask(found[1], self.enter(mask))
        return found[1]

    def value_of(self, tensor: Any) -> Any:
        """Returns the tensor of PyTorch, or array of the host, behind a symbolic tensor.

        Raises:
            Error: the tensor belongs to another graph.
        """
        if tensor.name not in self._known:
            self._known[tensor.name] = self._captured(tensor)
        return self._known[tensor.name]

    def left(self, value: Any) -> Any:
        """Returns the value behind a symbolic tensor or a weight, and other values unchanged."""
        if isinstance(value, WeightValue):
            return value.weight
        if isinstance(value, tf.Tensor) and not isinstance(value, ops.EagerTensor):
            return self.value_of(value)
        return value

    def note_variable(self, variable: Any) -> None:
        """Records the variable that has a handle."""
        self._variables[id(variable._handle)] = variable

    @contextmanager
    def without_effects(self, where: str) -> Iterator[None]:
        """Rejects assignments to variables in the context."""
        before, self._forbidding = self._forbidding, where
        capture = capture_state.current()
        done = None if capture is None else capture.num_acts
        try:
            yield
        finally:
            self._forbidding = before
        if capture is not None and capture.num_acts != done:
            raise refusal(f"next(), enqueue() or optimizer in {where}", "Do it in each iteration")

    def _create_op_internal(self, *args: Any, **kwargs: Any) -> Any:
        op = super()._create_op_internal(*args, **kwargs)
        if "_gradient_op_type" in op.node_def.attr:
            raise refusal(
                f"gradient_override_map of {op.type}",
                "Write the function so that its gradient follows from it, for example with "
                "tf.stop_gradient",
            )
        if op.type not in _WITHOUT_EFFECT:
            self._compute(op)
        return op

    def _captured(self, tensor: Any) -> Any:
        for outer, inner in self.captures:
            if inner is tensor:
                if id(outer) in self._variables:
                    return self._variables[id(outer)]
                if isinstance(outer, ops.EagerTensor) and _has_elements(outer):
                    return outer.numpy()
                if outer.dtype == tf.variant:
                    raise _of_data_set()
                if outer.dtype == tf.resource:
                    raise refusal("iterator or table of the host", _WAYS_OUT["IteratorGetNext"])
        raise refusal(
            f"tensor {tensor.name!r} of another function",
            "Pass tensors from function to function as arguments and results",
        )

    def _compute(self, op: Any) -> None:
        inputs = [self.value_of(each) for each in op.inputs]
        if "Dataset" in op.type:
            raise _of_data_set()
        row = stateful_operators.ROWS.get(op.type)
        is_known = not any(isinstance(each, (torch.Tensor, tuple)) for each in inputs)
        if row is None and is_known and (op.type == "Assert" or not op.op_def.is_stateful):
            found = _computed_by_host(op, inputs)
        else:
            row = row or ROWS.get(op.type)
            if self._forbidding and op.type.startswith("Assign"):
                raise refusal(f"assignment in {self._forbidding}", "Use tf.where")
            if row is None:
                is_part = op.type.startswith("Resource")  # Of a variable.
                way_out = _OF_PARTS if is_part else _WAYS_OUT.get(op.type, "")
                raise refusal(f"operator {op.type} (in {op.name!r})", way_out)
            arguments = self._arguments(op, row, inputs)
            try:
                found = row.compute(RawCall(op), *arguments)
            except (RuntimeError, IndexError, TypeError) as fault:
                raise _refused_by_pytorch(op, arguments, fault) from fault
        outputs = found if isinstance(found, list) else [found]
        for tensor, value in zip(op.outputs, outputs, strict=True):
            self._keep(tensor, value)

    def _arguments(self, op: Any, row: Row, inputs: Sequence[Any]) -> list[Any]:
        host = {position % max(len(inputs), 1) for position in row.host}
        found: list[Any] = []
        for number, value in enumerate(inputs):
            if number not in host:
                found.append(_on_device(value))
            elif isinstance(value, torch.Tensor):
                name = op.op_def.input_arg[min(number, len(op.op_def.input_arg) - 1)].name
                raise refusal(
                    f"{op.type} with {name} that is computed on the IPU",
                    "Shapes, axes, and how often a loop runs, are known when a program is "
                    "compiled. Ask x.shape, or pass a number of Python to the function in "
                    "args=[...], not a tensor",
                )
            else:
                found.append(value)
        return found

    def _keep(self, tensor: Any, value: Any) -> None:
        """Stores the value of a symbolic tensor, whose type and shape must agree."""
        if isinstance(value, torch.Tensor):
            name = str(value.dtype).removeprefix("torch.")
            if name == "float32" and tensor.dtype == tf.float64:
                raise refusal(
                    f"{tensor.op.type} of float64",
                    "IPUs have no float64: convert operands with tf.cast(x, tf.float32). The "
                    "quotient of two integers has this type, too",
                )
            if name != tensor.dtype.name:
                raise refusal(
                    f"{tensor.op.type} with a result of type {tensor.dtype.name}",
                    f"Here the result is {name}. Convert the operands with tf.cast",
                )
            assert tensor.shape.is_compatible_with(value.shape), (
                f"{tensor.op.type}: {tuple(value.shape)}, not {tensor.shape}"
            )
            tensor.set_shape(tuple(value.shape))
        elif isinstance(value, np.ndarray) and value.dtype.kind != "O":
            tensor.set_shape(value.shape)
        self._known[tensor.name] = value


_OF_PRINT = "tf.print shows values of the host. Send the value to an IPUOutfeedQueue"
_OF_PARTS = (
    "Assign the whole variable: v.assign(tf.tensor_scatter_nd_update(v, indices, updates)), for "
    "example"
)
_WAYS_OUT = {
    "PrintV2": _OF_PRINT,
    "StringFormat": _OF_PRINT,
    "Where": "Its result has as many rows as there are elements. Use tf.where with x and y",
    "If": "Use tf.where",
    "StatelessIf": "Use tf.where",
    "Assert": "Send the values to an IPUOutfeedQueue and check them on the host",
    "CheckNumerics": "Check what the model returns on the host",
    "Unique": "Its result has as many elements as there are values. Compute it on the host",
    "EagerPyFunc": "Functions of Python run on the host, in the data set for example",
    "PyFunc": "Functions of Python run on the host, in the data set for example",
    "IteratorGetNext": "Make the iterator in the scope of the strategy: iter(dataset)",
}


def _of_data_set() -> Exception:
    return refusal(
        "data set that is made in the function",
        "Make it outside of the function, with all its methods, and pass it to the function",
    )


def current_graph() -> DeviceGraph | None:
    """Returns this thread's graph of the device; `None` if there is none."""
    graph = None if tf.executing_eagerly() else ops.get_default_graph()
    return graph if isinstance(graph, DeviceGraph) else None


@contextmanager
def device_graph() -> Iterator[DeviceGraph]:
    """Makes a graph of the device the current graph, unless one is current."""
    graph = current_graph()
    if graph is not None:
        yield graph
        return
    graph = DeviceGraph()
    with graph.as_default(), tf.variable_creator_scope(functools.partial(_made_on_host, graph)):
        yield graph


def _made_on_host(graph: DeviceGraph, make: Callable[..., Any], **given: Any) -> Any:
    """Creates a variable of TensorFlow on the host, with the elements of its initial value."""
    value = given.get("initial_value")
    value = value() if callable(value) else value
    found = graph.left(value)
    if isinstance(found, FakeTensor):
        raise refusal("tf.Variable with an initial value that is computed on the IPU")
    with tf.init_scope():
        is_tensor = isinstance(found, torch.Tensor)
        given["initial_value"] = found.detach().numpy() if is_tensor else found
        return make(**given)


def _refused_by_pytorch(op: Any, arguments: Sequence[Any], fault: Exception) -> Exception:
    tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
    forms = ", ".join(f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" for x in tensors)
    why = str(fault).partition("\n")[0].rstrip(".")
    return refusal(
        f"{op.type} of {forms}",
        f"PyTorch says: {why}. Convert the operands with tf.cast, or use another function",
    )


def _on_device(value: Any) -> Any:
    if not isinstance(value, (np.ndarray, np.generic)):
        return value
    check_integers(value)
    is_known = value.dtype.name != "bfloat16"  # PyTorch cannot read NumPy's arrays of this type.
    tensor = to_torch(value if is_known else np.array(value, np.float32))
    return keras.ops.convert_to_tensor(tensor if is_known else tensor.to(torch.bfloat16))


def _computed_by_host(op: Any, inputs: Sequence[Any]) -> list[Any]:
    """Lets TensorFlow compute an operation whose inputs are known."""
    if op.type == "Const":
        return [tf.make_ndarray(op.get_attr("value"))]
    names = [name for name in op.node_def.attr if not name.startswith("_")]
    attributes = tuple(each for name in names for each in (name, op.get_attr(name)))
    context.ensure_initialized()
    with tf.init_scope():
        tensors = [
            tf.constant(value, each.dtype) if isinstance(value, (np.ndarray, np.generic)) else value
            for value, each in zip(inputs, op.inputs, strict=True)
        ]
        results = execute.execute(
            op.type.encode(), len(op.outputs), tensors, attributes, context.context()
        )
        return [each.numpy() if _has_elements(each) else each for each in results]


def _has_elements(tensor: Any) -> bool:
    return tensor.dtype not in (tf.resource, tf.variant)
