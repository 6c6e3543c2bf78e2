"""Activation functions."""

from __future__ import annotations

from typing import Any

from keras import ops

__all__ = ["gelu", "swish"]


def gelu(x: Any, name: str | None = None) -> Any:
    """Returns the Gaussian error linear unit in its tanh approximation (exact).

    Args:
        x: tensor of any shape.
        name: accepted.
    """
    return ops.gelu(x, approximate=True)


def swish(x: Any, name: str | None = None) -> Any:
    """Returns x · sigmoid(x) (exact).

    Args:
        x: tensor of any shape.
        name: accepted.
    """
    return ops.silu(x)
