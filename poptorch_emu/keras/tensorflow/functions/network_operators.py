"""Raw operators of TensorFlow for neural networks and matrices.

The attribute `data_format` tells whether pictures have their channels last or first. In PyTorch,
channels are first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import gt
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from poptorch_emu.keras.keras_2.same_pooling import average, padded, same_paddings
from poptorch_emu.keras.tensorflow.functions.raw_call import RawCall, Row, plain

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_MAXIMA = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_TRANSPOSED = {2: F.conv_transpose2d, 3: F.conv_transpose3d}


class _Layout:
    """The position of the channels in a raw operator, and its attributes for axes of pixels."""

    def __init__(self, call: RawCall) -> None:
        self._call = call
        self.is_last = not call.attr("data_format").startswith("NC")

    def first(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a picture with its channels first."""
        return x.movedim(-1, 1) if self.is_last else x

    def back(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a picture with its channels at the position in the operator."""
        return x.movedim(1, -1) if self.is_last else x

    def of_pixels(self, name: str) -> list[int]:
        """Returns the numbers of an attribute for the axes of pixels."""
        found = [int(each) for each in self._call.attr(name)]
        return found[1:-1] if self.is_last else found[2:]

    def others(self, name: str) -> list[int]:
        """Returns the numbers of an attribute for the axes of rows and channels."""
        found = [int(each) for each in self._call.attr(name)]
        return [found[0], found[-1] if self.is_last else found[1]]

    def windows(self, kernel: torch.Tensor) -> tuple[list[int], list[int], list[int]]:
        """Returns strides, dilations, and pixels under the kernel, for the axes of pixels."""
        strides, dilations = self.of_pixels("strides"), self.of_pixels("dilations")
        pixels = [(n - 1) * by + 1 for n, by in zip(kernel.shape[2:], dilations, strict=True)]
        return strides, dilations, pixels

    def paddings(
        self, sizes: Sequence[int], windows: Sequence[int], strides: Sequence[int]
    ) -> list[tuple[int, int]]:
        """Returns (pixels before, pixels after) for each axis."""
        kind = self._call.attr("padding")
        if kind == "EXPLICIT":
            explicit = [int(each) for each in self._call.attr("explicit_paddings")]
            pairs = list(zip(explicit[::2], explicit[1::2], strict=True))
            return pairs[1:-1] if self.is_last else pairs[2:]
        if kind == "VALID":
            return [(0, 0)] * len(sizes)
        return same_paddings(sizes, windows, strides)


def _convolution(call: RawCall, x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    layout = _Layout(call)
    if call.op.type == "DepthwiseConv2dNative":
        # The third axis of a depthwise kernel counts the channels of the input.
        kernel = kernel.reshape([*kernel.shape[:2], 1, -1])
    x, kernel = layout.first(x), kernel.movedim((-1, -2), (0, 1))
    strides, dilations, windows = layout.windows(kernel)
    x = padded(x, layout.paddings(x.shape[2:], windows, strides))
    groups = x.shape[1] // kernel.shape[1]
    function = _CONVOLUTIONS[x.dim() - 2]
    found = function(x, kernel, stride=strides, dilation=dilations, groups=groups)
    return layout.back(found)


def _transposed(
    call: RawCall, sizes: Any, kernel: torch.Tensor, gradient: torch.Tensor
) -> torch.Tensor:
    layout = _Layout(call)
    wanted = [int(each) for each in sizes]
    pixels = wanted[1:-1] if layout.is_last else wanted[2:]
    x, weights = layout.first(gradient), kernel.movedim((-1, -2), (0, 1))
    strides, dilations, windows = layout.windows(weights)
    pads = layout.paddings(pixels, windows, strides)
    full = _TRANSPOSED[len(pixels)](x, weights, stride=strides, dilation=dilations)
    for axis, (size, (before, _)) in enumerate(zip(pixels, pads, strict=True), 2):
        behind = before + size - full.shape[axis]
        full = F.pad(full, [*[0, 0] * (full.dim() - 1 - axis), 0, behind]) if behind > 0 else full
        full = full.narrow(axis, before, size)
    return layout.back(full)


def _pool(call: RawCall, x: torch.Tensor) -> torch.Tensor:
    layout = _Layout(call)
    if layout.others("ksize") != [1, 1] or layout.others("strides") != [1, 1]:
        raise call.refuse("over rows or channels", "Transpose the tensor, or use tf.reduce_max")
    x = layout.first(x)
    windows, strides = layout.of_pixels("ksize"), layout.of_pixels("strides")
    if len(windows) == 3 and call.attr("padding") == "SAME" and any(map(gt, strides, windows)):
        raise call.refuse("with strides that are longer than windows", "Use padding='VALID'")
    pairs = layout.paddings(x.shape[2:], windows, strides)
    if call.op.type.startswith("Max"):
        x = padded(x, pairs, -torch.inf)
        return layout.back(_MAXIMA[len(windows)](x, windows, strides))
    return layout.back(average(x, windows, strides, pairs))


def _batch_norm(
    call: RawCall, x: torch.Tensor, scale: Any, offset: Any, mean: Any, variance: Any
) -> list[torch.Tensor]:
    layout = _Layout(call)
    x = layout.first(x)
    shape = [1, -1, *[1] * (x.dim() - 2)]
    axes = [0, *range(2, x.dim())]
    if call.attr("is_training"):
        if call.attr("exponential_avg_factor") != 1:
            raise call.refuse("with exponential_avg_factor", "Use keras.layers.BatchNormalization")
        mean, variance = x.mean(axes), x.var(axes, correction=0)
    else:
        mean, variance = mean.detach(), variance.detach()
    factor = scale * torch.rsqrt(variance + call.attr("epsilon"))
    y = x * factor.reshape(shape) + (offset - mean * factor).reshape(shape)
    if call.attr("is_training"):
        count = x.numel() // x.shape[1]
        variance = variance * (count / max(count - 1, 1))
    mean, variance = mean.detach(), variance.detach()  # In TensorFlow y alone has a gradient.
    return [layout.back(y), mean, variance, mean, variance, mean]


def _bias_add(call: RawCall, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    if call.attr("data_format").startswith("NC"):
        bias = bias.reshape([-1, *[1] * (x.dim() - 2)])
    return x + bias


def _depth_to_space(call: RawCall, x: torch.Tensor) -> torch.Tensor:
    layout, size = _Layout(call), call.attr("block_size")
    x = layout.first(x)
    rows, channels, height, width = x.shape
    x = x.reshape(rows, size, size, channels // size**2, height, width).permute(0, 3, 4, 1, 5, 2)
    return layout.back(x.reshape(rows, channels // size**2, height * size, width * size))


def _space_to_depth(call: RawCall, x: torch.Tensor) -> torch.Tensor:
    layout, size = _Layout(call), call.attr("block_size")
    x = layout.first(x)
    rows, channels, height, width = x.shape
    x = x.reshape(rows, channels, height // size, size, width // size, size)
    x = x.permute(0, 3, 5, 1, 2, 4)
    return layout.back(x.reshape(rows, channels * size**2, height // size, width // size))


def _resize(mode: str) -> Row:
    def call_with(call: RawCall, x: torch.Tensor, size: Any) -> torch.Tensor:
        if call.attr("align_corners") or not call.attr("half_pixel_centers"):
            raise call.refuse("with align_corners or of the first version", "Use tf.image.resize")
        sizes = [int(each) for each in size]
        kind = {"mode": mode} if mode == "nearest-exact" else {"mode": mode, "align_corners": False}
        found = F.interpolate(x.movedim(-1, 1), sizes, **kind)
        return found.movedim(1, -1).to(call.type_of_output())

    return Row(call_with, host=(1,))


def _cross_entropy(call: RawCall, logits: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    logs = torch.log_softmax(logits, -1)
    known = torch.where((labels == 0) & torch.isinf(logs), 0.0, logs).detach()
    loss = -(labels * known).sum(-1)
    # TensorFlow's gradient is the difference of probabilities, whatever labels add up to.
    given = torch.where(labels == 0, 0.0, labels.detach() * logits).sum(-1)
    slope = torch.logsumexp(logits, -1) - given
    return [loss + (slope - slope.detach()), (torch.exp(logs) - labels).detach()]


def _sparse_cross_entropy(
    call: RawCall, logits: torch.Tensor, labels: torch.Tensor
) -> list[torch.Tensor]:
    logs, places = torch.log_softmax(logits, -1), labels.to(torch.int64)[:, None]
    is_valid = (places >= 0) & (places < logits.shape[-1])
    found = torch.gather(logs, 1, places.clamp(0, logits.shape[-1] - 1))
    loss = -torch.where(is_valid, found, torch.nan).squeeze(1)
    chosen = torch.zeros_like(logs).scatter(1, places.clamp(0, logits.shape[-1] - 1), 1.0)
    return [loss, (torch.exp(logs) - chosen).detach()]


def _matmul(call: RawCall, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    names = ("transpose_a", "transpose_b") if call.op.type == "MatMul" else ("adj_x", "adj_y")
    a = a.mT if call.attr(names[0]) else a
    b = b.mT if call.attr(names[1]) else b
    kind = call.type_of_output()  # BatchMatMulV3 may add int8 up in int32.
    return torch.matmul(a.to(kind), b.to(kind))


def _cholesky(x: torch.Tensor) -> torch.Tensor:
    """Returns NaN for matrices that are not positive-definite."""
    factor, fault = torch.linalg.cholesky_ex(x)
    return torch.where(fault[..., None, None] == 0, factor, torch.full_like(x, torch.nan).tril())


def _adjoint(call: RawCall, a: torch.Tensor) -> torch.Tensor:
    return a.mT if call.attr("adjoint") else a


def _triangular_solve(call: RawCall, a: torch.Tensor, b: torch.Tensor) -> Any:
    is_upper = call.attr("lower") == call.attr("adjoint")
    return torch.linalg.solve_triangular(_adjoint(call, a), b, upper=is_upper)


def _patches(call: RawCall, x: torch.Tensor) -> torch.Tensor:
    windows, strides = call.attr("ksizes")[1:3], call.attr("strides")[1:3]
    if list(call.attr("rates")) != [1, 1, 1, 1] or call.attr("padding") != "VALID":
        raise call.refuse("with rates or padding SAME", "Use padding='VALID' and rates of 1")
    found = x.unfold(1, windows[0], strides[0]).unfold(2, windows[1], strides[1])
    found = found.permute(0, 1, 2, 4, 5, 3)
    return found.reshape([*found.shape[:3], -1])


def _adjust_contrast(call: RawCall, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    mean = x.mean((-3, -2), keepdim=True)
    return (x - mean) * factor + mean


def _in_top_k(call: RawCall, scores: torch.Tensor, targets: torch.Tensor, k: Any) -> torch.Tensor:
    target = torch.gather(scores, 1, targets.to(torch.int64)[:, None])
    better = (scores > target).sum(1)
    return (better < int(np.asarray(k))) & torch.isfinite(scores).all(1)


ROWS = {
    "AdjustContrastv2": Row(_adjust_contrast),
    "AvgPool": Row(_pool),
    "AvgPool3D": Row(_pool),
    "BatchMatMulV2": Row(_matmul),
    "BatchMatMulV3": Row(_matmul),
    "BiasAdd": Row(_bias_add),
    "Cholesky": plain(_cholesky),
    "Conv2D": Row(_convolution),
    "Conv2DBackpropInput": Row(_transposed, host=(0,)),
    "Conv3D": Row(_convolution),
    "Conv3DBackpropInputV2": Row(_transposed, host=(0,)),
    "DepthToSpace": Row(_depth_to_space),
    "DepthwiseConv2dNative": Row(_convolution),
    "Einsum": Row(lambda call, *inputs: torch.einsum(call.attr("equation"), *inputs)),
    "ExtractImagePatches": Row(_patches),
    "FusedBatchNormV3": Row(_batch_norm),
    "InTopKV2": Row(_in_top_k, host=(2,)),
    "L2Loss": plain(lambda x: torch.square(x).sum() / 2),
    "LogSoftmax": plain(partial(torch.log_softmax, dim=-1)),
    "MatMul": Row(_matmul),
    "MatrixDeterminant": plain(torch.linalg.det),
    "MatrixInverse": Row(lambda call, a: torch.linalg.inv(_adjoint(call, a))),
    "MatrixSolve": Row(lambda call, a, b: torch.linalg.solve(_adjoint(call, a), b)),
    "MatrixTriangularSolve": Row(_triangular_solve),
    "MaxPool": Row(_pool),
    "MaxPool3D": Row(_pool),
    "ResizeBilinear": _resize("bilinear"),
    "ResizeNearestNeighbor": _resize("nearest-exact"),
    "Softmax": plain(partial(torch.softmax, dim=-1)),
    "SoftmaxCrossEntropyWithLogits": Row(_cross_entropy),
    "SpaceToDepth": Row(_space_to_depth),
    "SparseSoftmaxCrossEntropyWithLogits": Row(_sparse_cross_entropy),
}
