"""Functions of Python, Keras and TensorFlow that mean something else while a function is captured.

All of them ask first whether the call is part of the capture. Another thread gets what it always
gets.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import keras

from poptorch_emu.errors import compiler_error
from poptorch_emu.keras.loops import gradients, tensorflow_variables
from poptorch_emu.keras.loops.capture_state import current
from poptorch_emu.keras.loops.host_values import tensorflow
from poptorch_emu.keras.loops.infeed import Infeed
from poptorch_emu.trace.patches import patched

_VARIABLES = "tensorflow.python.ops.resource_variable_ops"
_REFLECTED = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
_OPERATORS = (*_REFLECTED, "lt", "le", "gt", "ge", "neg", "abs", "getitem")


@contextmanager
def captured_calls(function: Callable[..., Any]) -> Iterator[None]:
    """Replaces what a function may call."""
    tf = tensorflow()
    with ExitStack() as stack:
        stack.enter_context(_own_range(function))
        stack.enter_context(_replaced(keras.optimizers.Optimizer, apply=_apply))
        if tf is not None:
            tape = tf.GradientTape
            stack.enter_context(
                _replaced(
                    tape,
                    __enter__=_enter_tape,
                    __exit__=_leave_tape,
                    gradient=_gradient,
                    watch=_watch,
                    jacobian=_no_jacobian,
                    batch_jacobian=_no_jacobian,
                )
            )
            stack.enter_context(_replaced(type(tf.function(_nothing)), __call__=_call_plainly))
            stack.enter_context(_replaced(tf.Tensor, __iter__=_iterate_tensor))
            stack.enter_context(_replaced(tf.data.Dataset, __iter__=_iterate_dataset))
            stack.enter_context(_replaced(tf, print=_no_print))
            variables = importlib.import_module(_VARIABLES)
            stack.enter_context(
                _replaced(
                    variables.ResourceVariable,
                    assign=_assign,
                    assign_add=_assign_add,
                    assign_sub=_assign_sub,
                )
            )
            stack.enter_context(
                _replaced(variables.BaseResourceVariable, value=_value, read_value=_value)
            )
            operators = {f"__{name}__": _operator(name) for name in _OPERATORS}
            reflected = {f"__r{name}__": _reflected_operator(name) for name in _REFLECTED}
            stack.enter_context(_replaced(tf.Variable, **operators, **reflected))
        yield


def plain_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function of Python behind one of TensorFlow."""
    while hasattr(function, "python_function"):
        function = function.python_function
    return function


class CapturedRange(Sequence[Any]):
    """A range whose loop may become device iterations."""

    def __init__(self, values: Sequence[Any]) -> None:
        """Takes a range."""
        self._values = values

    def __iter__(self) -> Iterator[Any]:
        capture = current()
        return iter(self._values) if capture is None else capture.run_loop(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: Any) -> Any:
        return self._values[index]


class _Scalars(Sequence[Any]):
    """The tensors in one of TensorFlow, each made when it is asked for: a long range has many."""

    def __init__(self, tensor: Any) -> None:
        """Takes a tensor of one axis."""
        self._dtype = tensor.dtype
        self._array = tensor.numpy()

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self._array

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, index: Any) -> Any:
        return tensorflow().constant(self._array[index], self._dtype)


@contextmanager
def _replaced(owner: Any, **replacements: Callable[..., Any]) -> Iterator[None]:
    """Replaces attributes by functions that take the capture and the original first."""

    def replaced(replacement: Callable[..., Any], original: Callable[..., Any]) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            capture = current()
            if capture is None:
                return original(*args, **kwargs)
            return replacement(capture, original, *args, **kwargs)

        return call

    changed = {name: replaced(each, getattr(owner, name)) for name, each in replacements.items()}
    with patched(owner, **changed):
        yield


@contextmanager
def _own_range(function: Callable[..., Any]) -> Iterator[None]:
    """Gives the module of a function another `range` and `enumerate`, unless it has its own."""
    names = {"range": _range, "enumerate": _enumerate}
    scope = getattr(inspect.unwrap(function), "__globals__", {})
    added = {name: each for name, each in names.items() if name not in scope}
    scope.update(added)
    try:
        yield
    finally:
        for name in added:
            scope.pop(name, None)


def _range(*limits: Any) -> Any:
    values = builtins.range(*(_index(limit) for limit in limits))
    return values if current() is None else CapturedRange(values)


def _index(limit: Any) -> Any:
    return int(limit) if hasattr(limit, "numpy") else limit


def _enumerate(values: Any, start: int = 0) -> Any:
    if current() is None or not isinstance(values, Infeed):
        return builtins.enumerate(values, start)
    return values.enumerated(start)


def _iterate_tensor(capture: Any, original: Any, tensor: Any) -> Any:
    return capture.run_loop(_Scalars(tensor)) if len(tensor.shape) == 1 else original(tensor)


def _iterate_dataset(capture: Any, original: Any, dataset: Any) -> Any:
    return iter(Infeed(dataset, is_of_run=True))


def _apply(
    capture: Any, original: Any, optimizer: Any, grads: Any, trainable_variables: Any = None
) -> None:
    gradients.apply(capture, optimizer, list(grads), trainable_variables)


def _enter_tape(capture: Any, original: Any, tape: Any) -> Any:
    return tape


def _leave_tape(capture: Any, original: Any, tape: Any, *error: Any) -> None:
    return None


def _gradient(
    capture: Any,
    original: Any,
    tape: Any,
    target: Any,
    sources: Any,
    output_gradients: Any = None,
    unconnected_gradients: Any = "none",
) -> Any:
    kind = getattr(unconnected_gradients, "value", unconnected_gradients)
    return gradients.gradient(
        capture, target, sources, output_gradients, gives_zeros=kind == "zero"
    )


def _watch(capture: Any, original: Any, tape: Any, tensor: Any) -> None:
    gradients.watch(tensor)


def _no_jacobian(capture: Any, original: Any, *args: Any, **kwargs: Any) -> None:
    raise compiler_error(
        "GradientTape.jacobian is not captured. Take gradients of the single elements with "
        "GradientTape(persistent=True)."
    )


def _no_print(capture: Any, original: Any, *args: Any, **kwargs: Any) -> None:
    raise compiler_error(
        "tf.print shows values of the host, but this function runs on the IPU. Send the value to "
        "an IPUOutfeedQueue, and print what dequeue() returns."
    )


def _assign(capture: Any, original: Any, variable: Any, value: Any, *args: Any) -> Any:
    tensorflow_variables.assign(variable, value)
    return variable


def _assign_add(
    capture: Any, original: Any, variable: Any, delta: Any, *args: Any, **kw: Any
) -> Any:
    return _assign(capture, original, variable, tensorflow_variables.value_of(variable) + delta)


def _assign_sub(
    capture: Any, original: Any, variable: Any, delta: Any, *args: Any, **kw: Any
) -> Any:
    return _assign(capture, original, variable, tensorflow_variables.value_of(variable) - delta)


def _operator(name: str) -> Callable[..., Any]:
    compute = getattr(operator, name)

    def call(capture: Any, original: Any, variable: Any, *others: Any) -> Any:
        return compute(tensorflow_variables.value_of(variable), *others)

    return call


def _reflected_operator(name: str) -> Callable[..., Any]:
    compute = getattr(operator, name)

    def call(capture: Any, original: Any, variable: Any, other: Any) -> Any:
        return compute(other, tensorflow_variables.value_of(variable))

    return call


def _value(capture: Any, original: Any, variable: Any) -> Any:
    return tensorflow_variables.value_of(variable)


def _call_plainly(capture: Any, original: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    return plain_function(function)(*args, **kwargs)


def _nothing() -> None:
    """Is a function whose wrapper is of the class of all."""
