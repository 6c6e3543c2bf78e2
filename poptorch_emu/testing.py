"""Helpers for tests of models; not imported with the package, so `import poptorch.testing`."""

from __future__ import annotations

from typing import Any

import torch


def allclose(ref: Any, other: Any) -> bool:
    """Returns whether two outputs of a model are close (exact).

    Args:
        ref: a tensor, or a tuple or list of such outputs.
        other: the same structure; a list is not close to a tuple.

    Raises:
        TypeError: a leaf is not a tensor.
    """
    if isinstance(ref, torch.Tensor):
        return torch.allclose(other, ref)
    if not isinstance(ref, (tuple, list)):
        raise TypeError(f"allclose compares tensors, tuples and lists, not {type(ref).__name__}.")
    return type(ref) is type(other) and len(ref) == len(other) and all(map(allclose, ref, other))
