"""Random numbers of the device."""

from __future__ import annotations

from typing import Any

from keras import random as keras_random

__all__ = ["dropout"]


def dropout(
    x: Any,
    rate: float = 0.5,
    seed: Any = None,
    noise_shape: Any = None,
    ref: Any = None,
    name: str | None = None,
) -> Any:
    """Returns a tensor of which some elements are zero, and the others larger (exact).

    Args:
        x: the tensor.
        rate: which part becomes zero; others are divided by 1 - rate.
        seed: accepted: the device has its own.
        noise_shape: of what is drawn, if one number is for several elements.
        ref: accepted.
        name: accepted.

    Raises:
        ValueError: the rate is not from 0 to 1, without 1.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"rate must be at least 0 and less than 1, not {rate!r}.")
    return keras_random.dropout(x, rate, noise_shape)
