"""Functions of Keras on PyTorch, changed to the results and gradients of TensorFlow."""

from __future__ import annotations

from typing import Any

import keras
import torch
from keras.src import backend
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.backend.torch import image, nn, numpy
from keras.src.ops import nn as keras_ops

from poptorch_emu.keras.replacement import replace_functions


def install() -> None:
    """Replaces Keras's functions."""
    replace_functions(nn, categorical_crossentropy=_cross_entropy, separable_conv=_separable_conv)
    replace_functions(image, resize=_resize)
    replace_functions(numpy, correlate=_correlate)
    replace_functions(keras_ops, _layer_normalization=_layer_norm, _rms_normalization=_rms_norm)
    replace_functions(backend, rnn=_rnn)
    replace_functions(keras.layers.RNN, call=_recurrent_layer)


def _cross_entropy(
    original: Any, target: Any, output: Any, from_logits: bool = False, axis: int = -1
) -> Any:
    """Returns the cross entropy; the gradient of logits is `softmax - labels`.

    This is TensorFlow's gradient for all labels. It is the derivative if the labels add up to 1.
    """
    losses = original(target, output, from_logits, axis)
    if not from_logits:
        return losses
    logits = keras.ops.convert_to_tensor(output)
    sums = keras.ops.sum(keras.ops.convert_to_tensor(target), axis=axis)
    size = torch.logsumexp(logits, dim=axis)
    return losses + (1 - sums) * (size - size.detach())


def _separable_conv(
    original: Any, inputs: Any, depthwise_kernel: Any, *args: Any, **kwargs: Any
) -> Any:
    """Returns a separable convolution, unless its results differ from those in TensorFlow."""
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


def _resize(
    original: Any,
    images: Any,
    size: Any,
    interpolation: str = "bilinear",
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Returns resized pictures, by TensorFlow's cubic kernel if they are enlarged so.

    PyTorch has this kernel with antialiasing only, which changes nothing else in larger pictures.
    """
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


def _layer_norm(
    original: Any, x: Any, gamma: Any = None, beta: Any = None, axis: Any = -1, *args: Any,
    **kwargs: Any,
) -> Any:  # fmt: skip
    """Returns a layer normalization over any axes; Keras on PyTorch always takes the last ones."""
    x = keras.ops.convert_to_tensor(x)
    axes, last = _axes(x, axis)
    shape = tuple(x.shape[each] for each in axes)
    if gamma is not None and tuple(gamma.shape) != shape:  # TensorFlow reshapes it, too.
        gamma = keras.ops.reshape(gamma, shape)
    if beta is not None and tuple(beta.shape) != shape:
        beta = keras.ops.reshape(beta, shape)
    found = original(x.movedim(axes, last), gamma, beta, last, *args, **kwargs)
    return found.movedim(last, axes)


def _rms_norm(original: Any, x: Any, scale: Any = None, axis: Any = -1, epsilon: Any = None) -> Any:
    """Returns a normalization by the root of the mean square over any axes.

    As on TensorFlow, the factors belong to the last axes in any case.
    """
    x = keras.ops.convert_to_tensor(x)
    axes, last = _axes(x, axis)
    if axes == last:
        return original(x, scale, last, epsilon)
    found = original(x.movedim(axes, last), None, last, epsilon).movedim(last, axes)
    return found if scale is None else found * keras.ops.cast(scale, found.dtype)


def _correlate(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Returns a vector also where it has one element."""
    found = original(*args, **kwargs)
    return found if found.dim() else found[None]


def _axes(x: torch.Tensor, axis: Any) -> tuple[list[int], list[int]]:
    """Returns the numbers of some axes in order, and those of as many last axes."""
    axes = sorted(each % x.dim() for each in ([axis] if isinstance(axis, int) else axis))
    return axes, list(range(x.dim() - len(axes), x.dim()))


def _rnn(
    original: Any, *args: Any, go_backwards: bool = False, mask: Any = None, **kwargs: Any
) -> Any:
    """Does not unroll a masked loop backwards, where Keras fails."""
    if go_backwards and mask is not None:
        kwargs["unroll"] = False
    return original(*args, go_backwards=go_backwards, mask=mask, **kwargs)


def _recurrent_layer(
    original: Any, layer: Any, sequences: Any, initial_state: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Gives a stateful layer a copy of its states.

    On the host, Keras on PyTorch writes the new states over the old ones, which the gradient needs.
    """
    if initial_state is None and layer.stateful and not in_stateless_scope():
        initial_state = keras.tree.map_structure(lambda x: x.value.clone(), layer.states)
    return original(layer, sequences, initial_state, *args, **kwargs)
