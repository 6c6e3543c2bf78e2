"""Integers of TensorFlow on the device: exact inside, and checked where they enter and leave.

The engine computes int64 with 64 bits, returns it as int32, and stores floating-point states only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

# An integer state consists of three digits. Float32 represents each digit exactly.
_DIGIT_BITS, _NUM_DIGITS = 24, 3


def check_integers(values: np.ndarray | np.generic | torch.Tensor) -> None:
    """Checks that integers fit the device; other values are not checked.

    Raises:
        OverflowError: an integer needs more than 32 bits.
    """
    if isinstance(values, torch.Tensor) and values.is_floating_point():
        return  # NumPy has no bfloat16.
    array, limits = np.asarray(values), np.iinfo(np.int32)
    if array.dtype.kind not in "iu" or array.dtype.itemsize < 4 or not array.size:
        return
    if array.dtype == np.int32 or (array.min() >= limits.min and array.max() <= limits.max):
        return
    raise OverflowError(
        f"Integers on an IPU have 32 bits, but here is one from {array.min()} to {array.max()}. "
        "Pass smaller ones, or floating-point numbers."
    )


def as_state(value: torch.Tensor) -> torch.Tensor:
    """Returns a value as a state of the device: integers as digits along a new first axis."""
    if value.is_floating_point():
        return value
    number = value.to(torch.int64)
    digits = [number >> (_DIGIT_BITS * place) for place in range(_NUM_DIGITS)]
    digits[:-1] = [each & (2**_DIGIT_BITS - 1) for each in digits[:-1]]
    return torch.stack(digits).float()


def from_state(state: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns the value of a state, in the type that it had."""
    if dtype.is_floating_point:
        return state.to(dtype)
    digits = state.to(torch.int64)
    return sum(digits[place] << (_DIGIT_BITS * place) for place in range(_NUM_DIGITS)).to(dtype)  # type: ignore[union-attr]


def with_upper_words(outputs: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Returns outputs of the device, followed by the upper 32 bits of those of the type int64."""
    found = list(outputs)
    return found + [(each >> 32).to(torch.int32) for each in found if each.dtype is torch.int64]


def without_upper_words(
    outputs: Sequence[torch.Tensor], are_long: Sequence[bool]
) -> list[torch.Tensor]:
    """Returns the outputs without the upper words that follow them.

    Args:
        outputs: results of the device.
        are_long: whether each output without an upper word has the type int64.

    Raises:
        OverflowError: an output needs more than 32 bits.
    """
    found, upper_words = list(outputs[: len(are_long)]), iter(outputs[len(are_long) :])
    for output, is_long in zip(found, are_long, strict=True):
        if is_long and not torch.equal(upper := next(upper_words), output >> 31):
            number = (upper.to(torch.int64) << 32) + (output.to(torch.int64) & 0xFFFFFFFF)
            wrong = number[(upper != output >> 31)].flatten()
            raise OverflowError(
                f"Integers on an IPU have 32 bits, but a result of the type int64 is "
                f"{wrong[0].item()}. Compute it in floating-point numbers: tf.cast(x, tf.float32)."
            )
    return found
