"""Operations with random numbers of the device."""

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
    """Returns a tensor with some elements set to zero, and the others scaled up (exact).

    Args:
        x: tensor of any shape.
        rate: share of the elements that become zero; others are divided by 1 - rate.
        seed: accepted: the device has its own random numbers.
        noise_shape: shape of the mask, if elements share one random number.
        ref: accepted.
        name: accepted.

    Raises:
        ValueError: the rate is below 0, or is 1 or more.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"rate must be at least 0 and less than 1, not {rate!r}.")
    return keras_random.dropout(x, rate, noise_shape)
