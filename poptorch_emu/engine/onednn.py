"""PyTorch's operators that call oneDNN with packed weights, if this build of PyTorch has them."""

from __future__ import annotations

from typing import Any

import torch

IS_AVAILABLE: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


def _operator(name: str) -> Any:
    return getattr(torch.ops.mkldnn, name).default if IS_AVAILABLE else None


PACK_LINEAR = _operator("_reorder_linear_weight")
PACK_CONVOLUTION = _operator("_reorder_convolution_weight")
LINEAR = _operator("_linear_pointwise")
CONVOLUTION = _operator("_convolution_pointwise")
