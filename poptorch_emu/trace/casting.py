"""Switches on the casts between float16 and float32 that the device makes by itself.

The rules are in `csrc/ops/casting.cpp`, which sits above autograd where PyTorch's autocast would.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_DEVICE_TYPE = "ipu"


@contextmanager
def casts_mixed_types() -> Iterator[None]:
    """While active, operations on the IPU take float16 and float32 tensors together."""
    before = torch.is_autocast_enabled(_DEVICE_TYPE)
    torch.set_autocast_enabled(_DEVICE_TYPE, True)
    try:
        yield
    finally:
        torch.set_autocast_enabled(_DEVICE_TYPE, before)
