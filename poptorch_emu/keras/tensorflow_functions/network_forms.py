"""Functions of `tf.nn` that are more than a name of Keras, with TensorFlow's parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras import ops
from keras import random as keras_random


def embedding_lookup(params: Any, ids: Any, max_norm: Any = None) -> Any:
    """tf.nn.embedding_lookup."""
    return ops.take(params, ids, axis=0)


def softmax(logits: Any, axis: Any = None) -> Any:
    """tf.nn.softmax."""
    return ops.softmax(logits, -1 if axis is None else axis)


def log_softmax(logits: Any, axis: Any = None) -> Any:
    """tf.nn.log_softmax."""
    return ops.log_softmax(logits, -1 if axis is None else axis)


def swish(features: Any, beta: Any = 1.0) -> Any:
    """tf.nn.silu, also called swish."""
    return features * ops.sigmoid(features * beta)


def l2_loss(t: Any) -> Any:
    """tf.nn.l2_loss."""
    return ops.sum(ops.square(t)) / 2


def dropout(x: Any, rate: float, noise_shape: Any = None, seed: Any = None) -> Any:
    """tf.nn.dropout, with random numbers of the device."""
    return keras_random.dropout(x, rate, noise_shape, seed=seed)


def bias_add(value: Any, bias: Any, data_format: str | None = None) -> Any:
    """tf.nn.bias_add."""
    if data_format is not None and data_format.startswith("NC"):
        bias = ops.reshape(bias, [-1, *[1] * (len(value.shape) - 2)])
    return ops.add(value, bias)


def conv2d(
    input: Any, filters: Any, strides: Any, padding: Any, data_format: str = "NHWC",
    dilations: Any = None,
) -> Any:  # fmt: skip
    """tf.nn.conv2d."""
    return ops.conv(
        input,
        filters,
        _of_pixels(strides, data_format),
        padding.lower(),
        _format_name(data_format),
        _of_pixels(dilations or 1, data_format),
    )


def depthwise_conv2d(
    input: Any, filter: Any, strides: Any, padding: Any, data_format: str | None = None,
    dilations: Any = None,
) -> Any:  # fmt: skip
    """tf.nn.depthwise_conv2d."""
    data_format = data_format or "NHWC"
    return ops.depthwise_conv(
        input,
        filter,
        _of_pixels(strides, data_format),
        padding.lower(),
        _format_name(data_format),
        _of_pixels(dilations or 1, data_format),
    )


def _pooling(pool: Callable[..., Any]) -> Callable[..., Any]:
    """Returns tf.nn.max_pool2d or tf.nn.avg_pool2d."""

    def pooled(
        input: Any, ksize: Any, strides: Any, padding: Any, data_format: str = "NHWC"
    ) -> Any:
        sizes = _of_pixels(ksize, data_format), _of_pixels(strides, data_format)
        return pool(input, *sizes, padding.lower(), _format_name(data_format))

    return pooled


def sparse_softmax_cross_entropy_with_logits(labels: Any, logits: Any) -> Any:
    """tf.nn.sparse_softmax_cross_entropy_with_logits."""
    return ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)


def softmax_cross_entropy_with_logits(labels: Any, logits: Any, axis: int = -1) -> Any:
    """tf.nn.softmax_cross_entropy_with_logits."""
    return -ops.sum(labels * ops.log_softmax(logits, axis), axis)


def sigmoid_cross_entropy_with_logits(labels: Any = None, logits: Any = None) -> Any:
    """tf.nn.sigmoid_cross_entropy_with_logits."""
    return ops.binary_crossentropy(labels, logits, from_logits=True)


def _of_pixels(values: Any, data_format: str) -> Any:
    """Returns those of four values that are of pixels; one or two are as Keras has them."""
    if isinstance(values, int):
        return (values, values)
    values = tuple(values)
    if len(values) == 4:
        return values[1:3] if data_format == "NHWC" else values[2:]
    return values if len(values) == 2 else values * 2


def _format_name(data_format: str) -> str:
    return "channels_last" if data_format == "NHWC" else "channels_first"


# By their names in TensorFlow.
NETWORK_FORMS = {
    "nn.silu": swish, "nn.max_pool2d": _pooling(ops.max_pool),
    "nn.avg_pool2d": _pooling(ops.average_pool),
    **{f"nn.{each.__name__}": each for each in (
        softmax, log_softmax, l2_loss, dropout, bias_add, conv2d, embedding_lookup,
        sparse_softmax_cross_entropy_with_logits, softmax_cross_entropy_with_logits,
        sigmoid_cross_entropy_with_logits, depthwise_conv2d,
    )},
}  # fmt: skip
