"""Average pooling with the padding "same", with TensorFlow's results.

Keras on PyTorch repeats the pixels at the border, and so counts them twice. Here pixels outside of
the picture do not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import torch
import torch.nn.functional as F  # noqa: N812
from keras.src.backend.torch import nn

from poptorch_emu.keras.replacement import replace_functions

_POOLS: dict[int, Any] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def install() -> None:
    """Replaces Keras's function."""
    replace_functions(nn, average_pool=_average_pool)


def _average_pool(
    original: Any,
    inputs: Any,
    pool_size: Any,
    strides: Any = None,
    padding: str = "valid",
    data_format: str | None = None,
) -> Any:
    if padding != "same":
        return original(inputs, pool_size, strides, padding, data_format)
    x = keras.ops.convert_to_tensor(inputs)
    is_last = (data_format or keras.config.image_data_format()) == "channels_last"
    x = x.movedim(-1, 1) if is_last else x
    windows = _sizes(pool_size, x.dim() - 2)
    steps = windows if strides is None else _sizes(strides, x.dim() - 2)
    found = average(x, windows, steps, same_paddings(x.shape[2:], windows, steps))
    return found.movedim(1, -1) if is_last else found


def same_paddings(
    sizes: Sequence[int], windows: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int]]:
    """Returns the pixels before and after each axis for TensorFlow's padding SAME."""
    found = []
    for size, window, stride in zip(sizes, windows, strides, strict=True):
        total = max((math.ceil(size / stride) - 1) * stride + window - size, 0)
        found.append((total // 2, total - total // 2))
    return found


def padded(x: torch.Tensor, pairs: Sequence[tuple[int, int]], value: float = 0) -> torch.Tensor:
    """Returns pictures with pixels of one value around them."""
    if not any(map(any, pairs)):
        return x
    return F.pad(x, [each for pair in reversed(pairs) for each in pair], value=value)


def average(
    x: torch.Tensor,
    windows: Sequence[int],
    strides: Sequence[int],
    pairs: Sequence[tuple[int, int]],
) -> torch.Tensor:
    """Returns averages over windows; pixels outside of the picture do not count.

    Args:
        x: pictures with their channels first.
        windows: sizes of the windows, for each axis of pixels.
        strides: distances of windows, for each axis of pixels.
        pairs: pixels before and after each axis.
    """
    pool = _POOLS[len(windows)]
    means: torch.Tensor = pool(padded(x, pairs), windows, strides)
    if not any(map(any, pairs)):
        return means
    parts: torch.Tensor = pool(padded(torch.ones_like(x[:1, :1]), pairs), windows, strides)
    return means / parts


def _sizes(value: Any, count: int) -> tuple[int, ...]:
    return (value,) * count if isinstance(value, int) else tuple(value)
