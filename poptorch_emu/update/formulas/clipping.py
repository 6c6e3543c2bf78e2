"""The limit on the global norm of all gradients (`max_grad_norm`)."""

from __future__ import annotations

import torch
from torch import Tensor


def global_norm(gradients: list[Tensor]) -> Tensor:
    """Returns the L2 norm of all elements of `gradients`, 0-d float32."""
    norms = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in gradients]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm


def clip_scale(gradients: list[Tensor], max_norm: float | Tensor) -> Tensor:
    """Returns the factor that reduces the norm of all gradients to `max_norm` at most.

    The factor is 0-d and at most 1, float32 unless `max_norm` is a float64 tensor. A norm of norms
    is the norm of all elements. So if gradients are on several IPUs, pass the `global_norm` of each
    IPU instead of its gradients.
    """
    return torch.clamp(max_norm / global_norm(gradients), max=1.0)
