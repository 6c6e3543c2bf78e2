"""Calls between programs of TensorFlow and Keras on the host, outside of any capture.

TensorFlow computes what the program calls, and PyTorch what Keras computes. Gradients pass through
both: TensorFlow's tape asks PyTorch for the gradient of a call of Keras, and PyTorch asks a tape
for the gradient of a function of the program.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import torch
from keras.src.backend import get_keras_mask, set_keras_mask
from tensorflow.python.eager import record
from tensorflow.python.framework import ops

from poptorch_emu.keras.capture.symbolic_values import mapped
from poptorch_emu.keras.capture.tensorflow_variables import begin_run, counterpart, end_run
from poptorch_emu.keras.tensorflow.functions.raw_call import OUTSIDE, refusal
from poptorch_emu.keras.tensorflow.functions.weight_value import WeightValue
from poptorch_emu.torch_versions import FakeTensor

_WAY_OUT = "Write the training step as a function, and call strategy.run(function)"
_WITHOUT_OPERATORS = (tf.uint16, tf.uint32, tf.uint64)  # PyTorch only stores them.
_local = threading.local()


def call_keras(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Calls a function of Keras for a program, and returns TensorFlow's tensors."""
    leaves = [_read(leaf) for leaf in keras.tree.flatten((args, kwargs))]
    places = [n for n, leaf in enumerate(leaves) if _has_numbers(leaf)]

    def called(*tensors: torch.Tensor) -> Any:
        if not places:
            return function(*args, **kwargs)
        for place, tensor in zip(places, tensors, strict=True):
            leaves[place] = tensor
        own_args, own_kwargs = keras.tree.pack_sequence_as((args, kwargs), leaves)
        result = function(*own_args, **own_kwargs)
        for one, tensor in zip(given, tensors, strict=True):
            if get_keras_mask(tensor) is None and get_keras_mask(one) is not None:
                set_keras_mask(one, None)  # Attention takes the masks of its inputs away.
        return result

    given = [leaves[n] for n in places]
    with _flagged("is_called"):
        if record.could_possibly_record() and any(each.dtype.is_floating for each in given):
            return _recorded(called, given)
        return mapped(called(*map(to_keras, given)), to_tensorflow)


def call_optimizer(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Calls a method of an optimizer, which may update variables of TensorFlow."""

    def listed(value: Any) -> Any:
        return list(value) if isinstance(value, Iterator) else value

    args, kwargs = keras.tree.map_structure(listed, (args, kwargs))
    leaves = keras.tree.flatten((args, kwargs))
    if any(isinstance(leaf, tf.IndexedSlices) for leaf in leaves):
        raise refusal("tf.IndexedSlices as a gradient", "Use tf.convert_to_tensor", OUTSIDE)
    own = [counterpart(leaf) if _is_of_tensorflow(leaf) else leaf for leaf in leaves]
    updated = [one for one, leaf in zip(own, leaves, strict=True) if one is not leaf]
    begin_run(updated)
    result = call_keras(function, *keras.tree.pack_sequence_as((args, kwargs), own))
    end_run(updated)
    return result


def is_called() -> bool:
    """Returns whether a program called Keras in this thread, and Keras has not returned yet."""
    return getattr(_local, "is_called", False)


def call_program(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Calls a function of a program for Keras, and returns PyTorch's tensors."""
    leaves = keras.tree.flatten((args, kwargs))
    places = [n for n, leaf in enumerate(leaves) if _is_on_host(leaf)]

    def called(*tensors: Any) -> Any:
        for place, tensor in zip(places, tensors, strict=True):
            leaves[place] = tensor
        own_args, own_kwargs = keras.tree.pack_sequence_as((args, kwargs), leaves)
        return function(*own_args, **own_kwargs)

    given = [leaves[n] for n in places]
    if getattr(_local, "is_recording", False) and any(each.requires_grad for each in given):
        return _differentiable(called, given)
    return mapped(called(*map(to_tensorflow, given)), to_keras)


def to_tensorflow(value: Any) -> Any:
    """Returns TensorFlow's tensor for one of PyTorch on the host, and other values unchanged."""
    if not _is_on_host(value):
        return value
    plain = value.detach()
    if plain.dtype == torch.bfloat16:
        found = tf.cast(tf.constant(plain.float().numpy()), tf.bfloat16)
    else:
        found = tf.constant(plain.numpy())
    mask = get_keras_mask(value)
    if mask is not None:
        set_keras_mask(found, to_tensorflow(mask))
    return found


def to_keras(value: Any) -> Any:
    """Returns PyTorch's tensor for one of TensorFlow with numbers, and other values unchanged."""
    if not _has_numbers(value):
        return value
    if value.dtype in _WITHOUT_OPERATORS:
        raise refusal(f"type {value.dtype.name}", "Use tf.cast(x, tf.int32)", "in calls of Keras")
    found = keras.ops.convert_to_tensor(np.array(value))
    mask = get_keras_mask(value)
    if mask is not None:
        set_keras_mask(found, to_keras(mask))
    return found


def _read(value: Any) -> Any:
    """Returns the value of a variable of TensorFlow, which a tape records, and others unchanged."""
    return tf.convert_to_tensor(value) if _is_of_tensorflow(value) else value


def _is_of_tensorflow(value: Any) -> bool:
    """Returns whether a value is a variable of TensorFlow, and not that of a weight of Keras."""
    return isinstance(value, tf.Variable) and not isinstance(value, WeightValue)


def _has_numbers(value: Any) -> bool:
    if not isinstance(value, ops.EagerTensor):
        return False
    return bool(value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_bool)


def _is_on_host(value: Any) -> bool:
    is_tensor = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
    return is_tensor and value.device.type == "cpu"


@contextmanager
def _flagged(name: str) -> Iterator[None]:
    """Sets a flag of this thread during a context."""
    before = getattr(_local, name, False)
    setattr(_local, name, True)
    try:
        yield
    finally:
        setattr(_local, name, before)


def _recorded(called: Callable[..., Any], given: Sequence[Any]) -> Any:
    """Calls Keras in a way that TensorFlow's tapes can differentiate."""
    seen: dict[str, Any] = {}

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def compute(*tensors: Any) -> Any:
        inputs = [to_keras(each) for each in given]
        sources = [each.requires_grad_() for each in inputs if each.is_floating_point()]
        with _flagged("is_recording"), torch.enable_grad():
            seen["result"] = called(*inputs)
        outputs = [x for x in keras.tree.flatten(seen["result"]) if _is_on_host(x)]

        def gradient(*upstream: Any, variables: Any = None) -> Any:
            if variables:
                raise refusal(
                    f"GradientTape.gradient with {variables[0].name!r}, a variable of TensorFlow "
                    "that a layer of Keras uses",
                    _WAY_OUT,
                    OUTSIDE,
                )
            if not all(isinstance(dy, ops.EagerTensor) for dy in upstream):
                raise refusal(
                    "GradientTape.jacobian through a call of Keras",
                    "Call it with experimental_use_pfor=False",
                    OUTSIDE,
                )
            pairs = [(x, dy) for x, dy in zip(outputs, upstream, strict=True) if x.requires_grad]
            found: Sequence[Any] = [None] * len(sources)
            if pairs:
                totals, factors = zip(
                    *((x, to_keras(dy).to(x.dtype)) for x, dy in pairs), strict=True
                )
                found = torch.autograd.grad(
                    totals, sources, factors, retain_graph=True, allow_unused=True
                )
            numbers = iter(found)
            return [
                _first_order(next(numbers), given) if each.is_floating_point() else None
                for each in inputs
            ]

        return [to_tensorflow(each) for each in outputs], gradient

    found = iter(compute(*given))
    return keras.tree.map_structure(
        lambda leaf: _with_mask(next(found), leaf) if _is_on_host(leaf) else leaf, seen["result"]
    )


def _with_mask(found: Any, value: torch.Tensor) -> Any:
    mask = get_keras_mask(value)
    if mask is not None:
        set_keras_mask(found, to_tensorflow(mask))
    return found


def _first_order(gradient: torch.Tensor | None, sources: Sequence[Any]) -> Any:
    """Returns a gradient that refuses to be differentiated again.

    It is recorded as a function of the sources. Otherwise an outer tape would see a constant, and
    its gradient would be `None`.
    """
    if gradient is None:
        return None

    def refuse(*_: Any) -> Any:
        raise refusal("gradient of a gradient through a call of Keras", _WAY_OUT, OUTSIDE)

    compute = tf.custom_gradient(lambda value, *_: (tf.identity(value), refuse))
    return compute(to_tensorflow(gradient), *sources)


class _Differentiable(torch.autograd.Function):
    """A function of the program, which a tape of TensorFlow differentiates."""

    @staticmethod
    def forward(ctx: Any, called: Any, seen: dict[str, Any], *tensors: torch.Tensor) -> Any:
        ctx.inputs = [to_tensorflow(each) for each in tensors]
        with tf.GradientTape(persistent=True) as ctx.tape:
            ctx.tape.watch([each for each in ctx.inputs if each.dtype.is_floating])
            seen["result"] = called(*ctx.inputs)
        ctx.outputs = list(filter(_has_numbers, keras.tree.flatten(seen["result"])))
        outputs = tuple(map(to_keras, ctx.outputs))
        ctx.mark_non_differentiable(*(each for each in outputs if not each.is_floating_point()))
        return outputs

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> Any:
        pairs = [(y, dy) for y, dy in zip(ctx.outputs, upstream, strict=True) if dy is not None]
        pairs = [(y, to_tensorflow(dy)) for y, dy in pairs if y.dtype.is_floating]
        outputs, factors = [y for y, _ in pairs], [dy for _, dy in pairs]
        found = ctx.tape.gradient(outputs, ctx.inputs, output_gradients=factors)
        return None, None, *(x if x is None else to_keras(tf.convert_to_tensor(x)) for x in found)


def _differentiable(called: Callable[..., Any], given: Sequence[torch.Tensor]) -> Any:
    seen: dict[str, Any] = {}
    found = iter(_Differentiable.apply(called, seen, *given))  # type: ignore[no-untyped-call]
    return keras.tree.map_structure(
        lambda leaf: next(found) if _has_numbers(leaf) else to_keras(leaf), seen["result"]
    )
