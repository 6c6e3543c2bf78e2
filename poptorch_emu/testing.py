"""Helpers for tests of models; not imported with the package, so `import poptorch.testing`."""

from __future__ import annotations

from typing import Any

import torch


def allclose(expected_output: Any, actual_output: Any) -> bool:
    """Returns whether two outputs of a model are close (exact).

    Args:
        expected_output: a tensor, or a tuple or list of such outputs.
        actual_output: the same structure; a list is not close to a tuple.

    Raises:
        TypeError: a leaf is not a tensor.
    """
    if isinstance(expected_output, torch.Tensor):
        return torch.allclose(actual_output, expected_output)
    if not isinstance(expected_output, (tuple, list)):
        raise TypeError(
            f"allclose compares tensors, tuples and lists, not {type(expected_output).__name__}."
        )
    return (
        type(expected_output) is type(actual_output)
        and len(expected_output) == len(actual_output)
        and all(map(allclose, expected_output, actual_output))
    )
