"""Compares one call of a raw operator with the installed TensorFlow: values, types, gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import torch
from tensorflow_ops.samples import Sample

from poptorch_emu import Error
from poptorch_emu.keras.tensorflow.functions.program_functions import on_device

# float16 is rounded after each step here, and after the last one there.
_NEAR = {"float32": (1e-5, 2e-5), "float16": (4e-3, 4e-3), "bfloat16": (2e-2, 2e-2)}
_WITHOUT_GRADIENT = {
    "Digamma": "at its poles, where it is NaN",
    "Cholesky": "TensorFlow's is symmetric, which is another one of the same function",
    "MaxPool3D": "TensorFlow gives that of a maximum to each element that has it, here the first",
}
# What no function of TensorFlow returns.
_OUTPUTS = {"FusedBatchNormV3": 3, "SoftmaxCrossEntropyWithLogits": 1}
_OUTPUTS["SparseSoftmaxCrossEntropyWithLogits"] = 1


def difference(sample: Sample) -> str:
    """Returns how a call differs from TensorFlow; empty if it does not, or is refused by name."""
    call = _call(sample)
    reference = _dilated(sample) if sample.operator == "DepthwiseConv2dNative" else call
    try:
        wanted = tf.nest.flatten(reference(*_constants(sample)))
    except (tf.errors.OpError, ValueError, TypeError):
        return ""  # TensorFlow refuses it.
    try:
        found = tf.nest.flatten(on_device(call)(*_tensors(sample)))
    except Error:
        return ""
    except Exception as error:
        return f"{sample}: {type(error).__name__}: {str(error).splitlines()[0][:200]}"
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        text = compared(one, other)
        if text:
            return f"{sample} output {number}: {text}"
    if sample.operator in _WITHOUT_GRADIENT:
        return ""
    text = difference_of_gradients(call, _arrays(sample), reference)
    return text and f"{sample} {text}"


def _dilated(sample: Sample) -> Any:
    """Returns a depthwise convolution whose filter has zeros in place of the dilation.

    On processors, TensorFlow refuses the dilation, or with oneDNN differentiates as if there were
    none.
    """
    _, rows, columns, _ = sample.others.get("dilations", [1, 1, 1, 1])
    others = {**sample.others, "dilations": [1, 1, 1, 1]}

    def call(x: Any, filters: Any) -> Any:
        height, width = (
            (n - 1) * d + 1 for n, d in zip(filters.shape[:2], (rows, columns), strict=True)
        )
        at = np.indices(filters.shape[:2]).reshape(2, -1).T * (rows, columns)
        shape = (height, width, *filters.shape[2:])
        spread = tf.scatter_nd(at, tf.reshape(filters, (len(at), *filters.shape[2:])), shape)
        return [tf.raw_ops.DepthwiseConv2dNative(input=x, filter=spread, **others)]

    return call


def compared(found: torch.Tensor, wanted: Any) -> str:
    kind = str(found.dtype).removeprefix("torch.")
    if kind != wanted.dtype.name:
        return f"type {kind}, TensorFlow has {wanted.dtype.name}"
    if tuple(found.shape) != tuple(wanted.shape):
        return f"shape {tuple(found.shape)}, TensorFlow has {tuple(wanted.shape)}"
    relative, absolute = _NEAR.get(kind, (0, 0))
    one, other = found.detach().numpy(), wanted.numpy()
    if np.allclose(one, other, rtol=relative, atol=absolute, equal_nan=True):
        return ""
    wrong = ~np.isclose(one, other, rtol=relative, atol=absolute, equal_nan=True)
    places = np.flatnonzero(wrong)[:4]
    return f"{one.reshape(-1)[places]}, TensorFlow has {other.reshape(-1)[places]} at {places}"


def difference_of_gradients(
    call: Any, arrays: Sequence[np.ndarray], of_tensorflow: Any = None
) -> str:
    """Returns how the gradients of a function differ from TensorFlow; empty if they do not.

    Args:
        call: function of the arrays.
        arrays: arguments.
        of_tensorflow: the function as TensorFlow calls it, if that is another one.
    """
    arrays = list(map(_finite, arrays))
    given = list(map(tf.constant, arrays))
    sources = [each for each in given if each.dtype == tf.float32]
    if not sources:
        return ""
    try:
        with tf.GradientTape() as tape:
            tape.watch(sources)
            total = _total((of_tensorflow or call)(*given))
        if total is None:
            return ""
        wanted = tape.gradient(total, sources)
    except (LookupError, tf.errors.OpError, NotImplementedError):
        return ""
    tensors = [torch.from_numpy(np.array(each)) for each in arrays]
    for each in tensors:
        each.requires_grad_(each.dtype is torch.float32)
    result = on_device(lambda *args: _total(call(*args)))(*tensors)
    sources = [each for each in tensors if each.requires_grad]
    if not result.requires_grad:
        found: Any = [None] * len(sources)
    else:
        found = torch.autograd.grad(result, sources, allow_unused=True)
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        one = torch.zeros_like(sources[number]) if one is None else one
        other = tf.zeros_like(one.numpy()) if other is None else tf.convert_to_tensor(other)
        if one.shape == other.shape:  # Without a gradient in TensorFlow: any is as good.
            other = tf.where(tf.math.is_nan(other), one.numpy(), other)
        text = compared(one, other)
        if text:
            return f"gradient {number}: {text}"
    return ""


def _finite(array: np.ndarray) -> np.ndarray:
    """Returns an array without NaN and infinities, where gradients are nobody's."""
    is_float = np.issubdtype(array.dtype, np.floating)
    return np.where(np.isfinite(array), array, array.dtype.type(0.75)) if is_float else array


def _total(result: Any) -> Any:
    """Returns a number that depends on each element of a result in a way of its own."""
    total = None
    for each in tf.nest.flatten(result):
        if each.dtype == tf.float32:
            count = int(np.prod(each.shape))
            weights = tf.reshape(tf.cast(tf.range(count) % 7 + 1, tf.float32), each.shape)
            part = tf.reduce_sum(each * weights)
            total = part if total is None else total + part
    return total


def _call(sample: Sample) -> Any:
    function = getattr(tf.raw_ops, sample.operator)
    names = [name for name, each in sample.arrays.items()]
    sizes = [len(each) if isinstance(each, list) else None for each in sample.arrays.values()]

    def call(*tensors: Any) -> Any:
        remaining, given = iter(tensors), {}
        for name, size in zip(names, sizes, strict=True):
            given[name] = (
                next(remaining) if size is None else [next(remaining) for _ in range(size)]
            )
        found = tf.nest.flatten(function(**given, **sample.others))
        return found[: _OUTPUTS.get(sample.operator)]

    return call


def _arrays(sample: Sample) -> list[np.ndarray]:
    found = []
    for each in sample.arrays.values():
        found += each if isinstance(each, list) else [each]
    return found


def _constants(sample: Sample) -> list[Any]:
    return [tf.constant(each) for each in _arrays(sample)]


def _tensors(sample: Sample) -> list[torch.Tensor]:
    return [torch.from_numpy(np.array(each)) for each in _arrays(sample)]
