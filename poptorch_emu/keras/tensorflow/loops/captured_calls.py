"""Replacements for functions of Python, Keras and TensorFlow during a capture.

Each replacement first asks whether the call is part of the capture. In other threads it calls the
original.
"""

from __future__ import annotations

import builtins
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import torch

from poptorch_emu.keras.capture.capture_state import current
from poptorch_emu.keras.capture.device_values import is_of_device, read_variables
from poptorch_emu.keras.capture.host_values import tensorflow
from poptorch_emu.keras.capture.symbolic_values import entered, left
from poptorch_emu.keras.tensorflow.loops import gradients, tapes
from poptorch_emu.keras.tensorflow.loops.infeed import Infeed, Joined, Ordinals
from poptorch_emu.trace.pytorch.patches import patched


@contextmanager
def captured_calls(function: Callable[..., Any]) -> Iterator[None]:
    """Replaces functions that a captured function may call."""
    tf = tensorflow()
    with ExitStack() as stack:
        stack.enter_context(_own_range(function))
        stack.enter_context(_replaced(keras.optimizers.Optimizer, apply=_apply))
        if tf is not None:
            of_tapes = {"gradient": gradients.gradient, **tapes.replacements()}
            stack.enter_context(_replaced(tf.GradientTape, **of_tapes))
            stack.enter_context(_replaced(tf.Tensor, __iter__=_iterate_tensor))
            stack.enter_context(_replaced(tf.data.Dataset, __iter__=_iterate_dataset))
        yield


def recording() -> torch.set_grad_enabled:
    """Returns a context in which PyTorch records operations only for TensorFlow's tapes."""
    return torch.set_grad_enabled(tensorflow() is None)


def plain_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the Python function behind a function of TensorFlow."""
    while hasattr(function, "python_function"):
        function = function.python_function
    return function


class CapturedRange(Sequence[Any]):
    """A range whose loop may become device iterations."""

    def __init__(self, values: Sequence[Any]) -> None:
        """Wraps a sequence of values."""
        self.values = values

    def __iter__(self) -> Iterator[Any]:
        capture = current()
        if capture is None:
            return iter(self.values)
        return capture.run_loop(self.values, is_of_python=True)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: Any) -> Any:
        return self.values[index]


_CAPTURED = (Infeed, Joined, CapturedRange)


class _Scalars(Sequence[Any]):
    """The scalars of a TensorFlow tensor, created on demand because a long range has many."""

    def __init__(self, tensor: Any) -> None:
        """Wraps a tensor with one axis whose elements are known on the host."""
        self._dtype = tensor.dtype
        found = left(tensor)
        self._array = found if found is not tensor else tensor.numpy()

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
    """Replaces `range`, `enumerate` and `zip` in a function's module, unless it defines them."""
    names = {"range": _range, "enumerate": _enumerate, "zip": _zip}
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
    if current() is None or not isinstance(source := _source(values), _CAPTURED):
        return builtins.enumerate(values, start)
    numbers = builtins.range(start, start + sys.maxsize)
    return _zip(numbers if isinstance(source, CapturedRange) else Ordinals(start), source)


def _zip(*values: Any, strict: bool = False) -> Any:
    sources = [_source(each) for each in values]
    is_captured = any(isinstance(each, _CAPTURED) for each in sources)
    if current() is None or not is_captured:
        return builtins.zip(*values, strict=strict)
    plain = [each.values if isinstance(each, CapturedRange) else each for each in sources]
    kinds = (Infeed, Joined, Sequence)
    return Joined([each if isinstance(each, kinds) else list(each) for each in plain])


def _source(values: Any) -> Any:
    """Returns an infeed for a data set, and any other value unchanged."""
    tf = tensorflow()
    if tf is not None and current() is not None and isinstance(values, tf.data.Dataset):
        return Infeed(values, is_of_run=True)
    return values


def _iterate_tensor(capture: Any, original: Any, tensor: Any) -> Any:
    if is_of_device(left(tensor)):
        return iter(tensorflow().unstack(tensor))
    if len(tensor.shape) != 1:
        return original(tensor)
    return map(entered, capture.run_loop(_Scalars(tensor)))


def _iterate_dataset(capture: Any, original: Any, dataset: Any) -> Any:
    return iter(Infeed(dataset, is_of_run=True))


def _apply(
    capture: Any, original: Any, optimizer: Any, grads: Any, trainable_variables: Any = None
) -> None:
    gradients.apply(capture, optimizer, read_variables(list(grads)), trainable_variables)
