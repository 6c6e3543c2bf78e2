"""Functions of Keras on PyTorch, changed to the results and gradients of TensorFlow."""

from __future__ import annotations

import functools
from typing import Any

import keras
import torch
from keras.src import backend
from keras.src.backend.torch import image, nn
from keras.src.ops import nn as keras_ops


def install() -> None:
    """Replaces Keras's functions."""
    nn.categorical_crossentropy = _as_softmax_minus_labels(nn.categorical_crossentropy)
    nn.separable_conv = _without_dilated_channels_first(nn.separable_conv)
    image.resize = _with_cubic_of_tensorflow(image.resize)
    keras_ops._layer_normalization = _layer_norm_of_any_axes(keras_ops._layer_normalization)
    keras_ops._rms_normalization = _rms_norm_of_any_axes(keras_ops._rms_normalization)
    backend.rnn = _not_unrolled_with_mask(backend.rnn)


def _as_softmax_minus_labels(original: Any) -> Any:
    """Returns a cross entropy of logits whose gradient is `softmax - labels`.

    This is TensorFlow's gradient for all labels. It is the derivative if the labels add up to 1.
    """

    @functools.wraps(original)
    def categorical_crossentropy(
        target: Any, output: Any, from_logits: bool = False, axis: int = -1
    ) -> Any:
        losses = original(target, output, from_logits, axis)
        if not from_logits:
            return losses
        logits = keras.ops.convert_to_tensor(output)
        sums = keras.ops.sum(keras.ops.convert_to_tensor(target), axis=axis)
        size = torch.logsumexp(logits, dim=axis)
        return losses + (1 - sums) * (size - size.detach())

    return categorical_crossentropy


def _without_dilated_channels_first(original: Any) -> Any:
    """Returns a separable convolution that refuses a case with other results in TensorFlow."""

    @functools.wraps(original)
    def separable_conv(inputs: Any, depthwise_kernel: Any, *args: Any, **kwargs: Any) -> Any:
        names = ("pointwise_kernel", "strides", "padding", "data_format", "dilation_rate")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        rate = given.get("dilation_rate", 1)
        is_dilated = max(rate if isinstance(rate, (tuple, list)) else (rate,)) > 1
        data_format = given.get("data_format") or keras.config.image_data_format()
        if is_dilated and data_format == "channels_first":
            raise ValueError(
                f"SeparableConv{len(inputs.shape) - 2}D(dilation_rate={rate!r}, data_format="
                "'channels_first') has other results in TensorFlow. Use data_format="
                "'channels_last'."
            )
        return original(inputs, depthwise_kernel, *args, **kwargs)

    return separable_conv


def _with_cubic_of_tensorflow(original: Any) -> Any:
    """Returns a `resize` with TensorFlow's cubic kernel, which PyTorch has with antialiasing only.

    When pictures are enlarged, antialiasing changes nothing else.
    """

    @functools.wraps(original)
    def resize(
        images: Any, size: Any, interpolation: str = "bilinear", *args: Any, **kwargs: Any
    ) -> Any:
        if interpolation != "bicubic" or (args and args[0]) or kwargs.get("antialias"):
            return original(images, size, interpolation, *args, **kwargs)
        data_format = kwargs.get("data_format") or keras.config.image_data_format()
        shape = images.shape[-2:] if data_format == "channels_first" else images.shape[-3:-1]
        if any(new < old for new, old in zip(size, shape, strict=True)):
            raise ValueError(
                f"Resizing from {tuple(shape)} to {tuple(size)} with interpolation='bicubic' and "
                "without antialias has other results in TensorFlow. Set antialias=True, or use "
                "interpolation='bilinear'."
            )
        kwargs["antialias"] = True
        return original(images, size, interpolation, *args[1:], **kwargs)

    return resize


def _layer_norm_of_any_axes(original: Any) -> Any:
    """Returns a layer normalization over any axes; Keras on PyTorch always takes the last ones."""

    @functools.wraps(original)
    def layer_normalization(
        x: Any, gamma: Any = None, beta: Any = None, axis: Any = -1, *args: Any, **kwargs: Any
    ) -> Any:
        x = keras.ops.convert_to_tensor(x)
        axes, last = _axes(x, axis)
        found = original(x.movedim(axes, last), gamma, beta, last, *args, **kwargs)
        return found.movedim(last, axes)

    return layer_normalization


def _rms_norm_of_any_axes(original: Any) -> Any:
    """Returns a normalization by the root of the mean square over any axes.

    As on TensorFlow, the factors belong to the last axes in any case.
    """

    @functools.wraps(original)
    def rms_normalization(x: Any, scale: Any = None, axis: Any = -1, epsilon: Any = None) -> Any:
        x = keras.ops.convert_to_tensor(x)
        axes, last = _axes(x, axis)
        if axes == last:
            return original(x, scale, last, epsilon)
        found = original(x.movedim(axes, last), None, last, epsilon).movedim(last, axes)
        return found if scale is None else found * keras.ops.cast(scale, found.dtype)

    return rms_normalization


def _axes(x: torch.Tensor, axis: Any) -> tuple[list[int], list[int]]:
    """Returns the numbers of some axes in order, and those of as many last axes."""
    axes = sorted(each % x.dim() for each in ([axis] if isinstance(axis, int) else axis))
    return axes, list(range(x.dim() - len(axes), x.dim()))


def _not_unrolled_with_mask(original: Any) -> Any:
    """Returns an `rnn` that does not unroll a masked loop backwards, where Keras fails."""

    @functools.wraps(original)
    def rnn(*args: Any, go_backwards: bool = False, mask: Any = None, **kwargs: Any) -> Any:
        if go_backwards and mask is not None:
            kwargs["unroll"] = False
        return original(*args, go_backwards=go_backwards, mask=mask, **kwargs)

    return rnn
