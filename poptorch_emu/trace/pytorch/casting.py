"""Enables the casts between float16 and float32 that the device inserts.

The rules are in `csrc/ops/casting.cpp`, which runs above autograd, where PyTorch's autocast runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_DEVICE_TYPE = "ipu"


@contextmanager
def casts_mixed_types() -> Iterator[None]:
    """Within the context, operations on the IPU accept float16 and float32 tensors together."""
    before = torch.is_autocast_enabled(_DEVICE_TYPE)
    torch.set_autocast_enabled(_DEVICE_TYPE, True)
    try:
        yield
    finally:
        torch.set_autocast_enabled(_DEVICE_TYPE, before)
