"""Functions of TensorFlow that are more than a name of Keras, with TensorFlow's parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import torch
from keras import ops

from poptorch_emu.errors import compiler_error


def identity(input: Any) -> Any:
    """tf.identity."""
    return input


def ensure_shape(x: Any, shape: Any) -> Any:
    """tf.ensure_shape: shapes are known when a program is captured."""
    return x


def saturate_cast(value: Any, dtype: str) -> Any:
    """tf.saturate_cast: the nearest number that the type has."""
    kind = getattr(torch, dtype)
    limits = (torch.finfo if kind.is_floating_point else torch.iinfo)(kind)
    high = limits.max
    if "float" in keras.backend.standardize_dtype(value.dtype) and int(np.float32(high)) > high:
        high = float(np.nextafter(np.float32(high), np.float32(0)))  # The largest one below it.
    return ops.cast(ops.clip(value, limits.min, high), dtype)


def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """tf.where with values."""
    if x is None or y is None:
        raise compiler_error(
            "tf.where without x and y returns as many indices as there are, but on an IPU all "
            "shapes are known beforehand. Pass what is to be where the condition holds and where "
            "it does not."
        )
    return ops.where(condition, x, y)


def add_n(inputs: Sequence[Any]) -> Any:
    """tf.add_n."""
    total = inputs[0]
    for each in inputs[1:]:
        total = ops.add(total, each)
    return total


def split(value: Any, num_or_size_splits: Any, axis: int = 0, num: Any = None) -> Any:
    """tf.split."""
    sizes = num_or_size_splits
    if isinstance(sizes, int):
        return list(ops.split(value, sizes, axis))
    sizes = list(sizes)
    if -1 in sizes:
        sizes[sizes.index(-1)] = value.shape[axis] - sum(sizes) - 1
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes) - 1)]
    return list(ops.split(value, ends, axis))


def slice_(input_: Any, begin: Sequence[int], size: Sequence[int]) -> Any:
    """tf.slice."""
    parts = [
        slice(first, None if length == -1 else first + length)
        for first, length in zip(begin, size, strict=True)
    ]
    return input_[tuple(parts)]


def pad(tensor: Any, paddings: Any, mode: str = "CONSTANT", constant_values: Any = 0) -> Any:
    """tf.pad."""
    mode = mode.lower()
    value = {"constant_values": constant_values} if mode == "constant" else {}
    return ops.pad(tensor, [tuple(each) for each in paddings], mode=mode, **value)


def gather(
    params: Any, indices: Any, validate_indices: Any = None, axis: Any = None, batch_dims: int = 0
) -> Any:
    """tf.gather."""
    if batch_dims:
        raise _way_out("gather with batch_dims", "keras.ops.take_along_axis")
    return ops.take(params, indices, axis=axis or 0)


def gather_nd(params: Any, indices: Any, batch_dims: int = 0) -> Any:
    """tf.gather_nd: rows of what is below the last axis of the indices."""
    if batch_dims:
        raise _way_out("gather_nd with batch_dims", "keras.ops.take_along_axis")
    depth = indices.shape[-1]
    outer, inner = list(params.shape[:depth]), list(params.shape[depth:])
    strides = [math.prod(outer[number + 1 :]) for number in range(depth)]
    rows = sum(indices[..., number] * stride for number, stride in enumerate(strides))
    return ops.take(ops.reshape(params, [math.prod(outer), *inner]), rows, axis=0)


def scatter_nd(indices: Any, updates: Any, shape: Any) -> Any:
    """tf.scatter_nd."""
    return ops.scatter(indices, updates, tuple(shape))


def one_hot(
    indices: Any, depth: int, on_value: Any = None, off_value: Any = None, axis: Any = None,
    dtype: str | None = None,
) -> Any:  # fmt: skip
    """tf.one_hot."""
    plain = ops.one_hot(indices, depth, axis=-1 if axis is None else axis, dtype=dtype or "float32")
    if on_value is None and off_value is None:
        return plain
    on, off = 1 if on_value is None else on_value, 0 if off_value is None else off_value
    return plain * (on - off) + off


def argmax(input: Any, axis: Any = None, output_type: str = "int64") -> Any:
    """tf.argmax, whose axis is the first by default."""
    return ops.cast(ops.argmax(input, axis=axis or 0), output_type)


def argmin(input: Any, axis: Any = None, output_type: str = "int64") -> Any:
    """tf.argmin, whose axis is the first by default."""
    return ops.cast(ops.argmin(input, axis=axis or 0), output_type)


def count_nonzero(
    input: Any,
    axis: Any = None,
    keepdims: Any = None,
    dtype: str = "int64",
) -> Any:
    """tf.math.count_nonzero."""
    return ops.sum(ops.cast(ops.not_equal(input, 0), dtype), axis, bool(keepdims))


def argsort(values: Any, axis: int = -1, direction: str = "ASCENDING") -> Any:
    """tf.argsort."""
    found = ops.argsort(values, axis)
    return ops.cast(ops.flip(found, axis) if direction == "DESCENDING" else found, "int32")


def sort(values: Any, axis: int = -1, direction: str = "ASCENDING") -> Any:
    """tf.sort."""
    found = ops.sort(values, axis)
    return ops.flip(found, axis) if direction == "DESCENDING" else found


def cumsum(x: Any, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Any:
    """tf.cumsum."""
    x = ops.flip(x, axis) if reverse else x
    total = ops.cumsum(x, axis)
    total = total - x if exclusive else total
    return ops.flip(total, axis) if reverse else total


def squared_difference(x: Any, y: Any) -> Any:
    """tf.math.squared_difference."""
    return ops.square(ops.subtract(x, y))


def multiply_no_nan(x: Any, y: Any) -> Any:
    """tf.math.multiply_no_nan: zero where y is."""
    return ops.where(ops.equal(y, 0), ops.zeros_like(y), ops.multiply(x, y))


def matmul(
    a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False, adjoint_a: bool = False,
    adjoint_b: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """tf.matmul."""
    a = ops.swapaxes(a, -1, -2) if transpose_a or adjoint_a else a
    b = ops.swapaxes(b, -1, -2) if transpose_b or adjoint_b else b
    return ops.matmul(a, b)


def norm(tensor: Any, ord: Any = "euclidean", axis: Any = None, keepdims: Any = None) -> Any:
    """tf.norm: of all elements, as of one vector, without an axis."""
    if axis is None and ord == "euclidean":
        return ops.sqrt(ops.sum(ops.square(tensor), keepdims=bool(keepdims)))
    return ops.norm(tensor, None if ord == "euclidean" else ord, axis, bool(keepdims))


def reduce_euclidean_norm(input_tensor: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """tf.math.reduce_euclidean_norm."""
    return ops.sqrt(ops.sum(ops.square(input_tensor), axis, keepdims))


def clip_by_norm(t: Any, clip_norm: Any, axes: Any = None) -> Any:
    """tf.clip_by_norm."""
    length = reduce_euclidean_norm(t, axes, axes is not None)
    return t * clip_norm / ops.maximum(length, clip_norm)


def global_norm(t_list: Sequence[Any]) -> Any:
    """tf.linalg.global_norm."""
    return ops.sqrt(add_n([ops.sum(ops.square(each)) for each in t_list if each is not None]))


def clip_by_global_norm(t_list: Sequence[Any], clip_norm: Any, use_norm: Any = None) -> Any:
    """tf.clip_by_global_norm."""
    length = global_norm(t_list) if use_norm is None else use_norm
    factor = clip_norm / ops.maximum(length, clip_norm)
    return [None if each is None else each * factor for each in t_list], length


def unsorted_segment_mean(data: Any, segment_ids: Any, num_segments: int) -> Any:
    """tf.math.unsorted_segment_mean."""
    count = ops.segment_sum(ops.ones_like(data), segment_ids, num_segments)
    return ops.segment_sum(data, segment_ids, num_segments) / ops.maximum(count, 1)


def l2_normalize(x: Any, axis: Any = None, epsilon: float = 1e-12, dim: Any = None) -> Any:
    """tf.math.l2_normalize."""
    square = ops.sum(ops.square(x), axis, keepdims=True)
    return x * ops.rsqrt(ops.maximum(square, epsilon))


def _way_out(what: str, instead: str) -> Exception:
    return compiler_error(f"tf.{what} has no counterpart on the device. Use {instead}.")


# By their names in TensorFlow. Those that are called as there are found by their own.
FORMS = {
    "slice": slice_, "math.cumsum": cumsum, "math.l2_normalize": l2_normalize, "math.add_n": add_n,
    "math.argmax": argmax, "math.argmin": argmin, "linalg.matmul": matmul,
    "linalg.global_norm": global_norm,
    **{f"math.{each.__name__}": each for each in (
        squared_difference, multiply_no_nan, reduce_euclidean_norm, unsorted_segment_mean,
        count_nonzero,
    )},
    **{each.__name__: each for each in (
        identity, ensure_shape, saturate_cast, where, split, pad, gather, gather_nd, scatter_nd,
        one_hot, sort, argsort, norm, clip_by_norm, clip_by_global_norm,
    )},
}  # fmt: skip
