"""The bytes of a tensor's values, to store, hash or compare them."""

from __future__ import annotations

import torch


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the bytes of a tensor's values in row-major order, as a vector of uint8.

    A contiguous tensor shares its memory with the result. The strides of a tensor with at most one
    element can be any numbers: PyTorch calls it contiguous and keeps them.
    """
    whole = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)
