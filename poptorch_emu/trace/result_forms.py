"""The forms of results, which the memo of a trace finds out, as data that can be kept.

What PyTorch makes of an operation is known by a text that tells the operation, the form of each
tensor among its arguments, each literal with its type, and the settings that decide with them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from poptorch_emu.errors import make_error

_MAX_BYTES = 2**62


@dataclass(frozen=True)
class Form:
    """The form of one result that has memory of its own."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class Written:
    """Says that an operation writes to its first argument and returns it."""


# One result, several (with `None` for those that are not asked for), or the first argument.
Forms = Form | tuple[Form | None, ...] | Written


def settings() -> tuple[Any, ...]:
    """Returns what decides on the form of a result besides the arguments, as it is now."""
    return (
        torch.get_default_dtype(),
        torch.is_inference_mode_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch._C._get_mkldnn_enabled(),
    )


def to_json(known: Mapping[str, Forms]) -> bytes:
    """Returns forms by their texts as bytes of a file."""
    return json.dumps({text: _stored(forms) for text, forms in known.items()}).encode()


def from_json(data: bytes, name: str) -> dict[str, Forms]:
    """Returns the forms in `data`, which are of the file `name`.

    Raises:
        Error: it holds anything else.
    """
    try:
        return {text: _restored(stored) for text, stored in json.loads(data).items()}
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as cause:
        raise make_error(
            f"Invalid file {name}: it does not hold the forms of results ({cause}). Remove it."
        ) from cause


def _stored(forms: Forms) -> Any:
    if isinstance(forms, Written):
        return "written"
    if isinstance(forms, Form):
        return {
            "dtype": str(forms.dtype).removeprefix("torch."),
            "shape": forms.shape,
            "stride": forms.stride,
        }
    return [form and _stored(form) for form in forms]


def _restored(stored: Any) -> Forms:
    if stored == "written":
        return Written()
    if isinstance(stored, list):
        return tuple([None if each is None else _form(each) for each in stored])
    return _form(stored)


def _num_bytes(dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Returns how far a tensor of this form reaches in memory, at least its elements' own bytes."""
    reach = 1 + sum(max(size - 1, 0) * step for size, step in zip(shape, stride, strict=True))
    return dtype.itemsize * max(reach, math.prod(shape))


def _form(stored: Mapping[str, Any]) -> Form:
    dtype = getattr(torch, stored["dtype"])
    shape, stride = tuple(stored["shape"]), tuple(stored["stride"])
    if not isinstance(dtype, torch.dtype) or len(shape) != len(stride):
        raise ValueError(f"{stored} is no form of a tensor")
    if not all(type(number) is int and number >= 0 for number in (*shape, *stride)):
        raise ValueError(f"{stored} has a size that is no natural number")
    if _num_bytes(dtype, shape, stride) > _MAX_BYTES:
        raise ValueError(f"{stored} is larger than any memory")
    return Form(dtype, shape, stride)
