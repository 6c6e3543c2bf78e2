"""The tensor metadata of results that the memo of a trace has found, in a form for files.

The metadata of a result are stored by a text: the operation, the metadata of its tensor arguments,
its literals with their types, and the settings that affect the result.
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
class TensorMetadata:
    """The metadata of one result with memory of its own."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class Written:
    """Marks an operation that writes to its first argument and returns it."""


# One result, several results (None for those that are not requested), or the first argument.
ResultMetadata = TensorMetadata | tuple[TensorMetadata | None, ...] | Written


def settings() -> tuple[Any, ...]:
    """Returns the current settings that affect the metadata of results."""
    return (
        torch.get_default_dtype(),
        torch.is_inference_mode_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.mkldnn.enabled,
    )


def to_json(known: Mapping[str, ResultMetadata]) -> bytes:
    """Returns the bytes of a file with metadata and their texts."""
    return json.dumps({text: _stored(metadata) for text, metadata in known.items()}).encode()


def from_json(data: bytes, name: str) -> dict[str, ResultMetadata]:
    """Returns the metadata in `data`, the content of the file `name`.

    Raises:
        Error: the file does not hold metadata.
    """
    try:
        return {text: _restored(stored) for text, stored in json.loads(data).items()}
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as cause:
        raise make_error(
            f"Invalid file {name}: it does not hold the metadata of results ({cause}). Remove it."
        ) from cause


def _stored(metadata: ResultMetadata) -> Any:
    if isinstance(metadata, Written):
        return "written"
    if isinstance(metadata, TensorMetadata):
        return {
            "dtype": str(metadata.dtype).removeprefix("torch."),
            "shape": metadata.shape,
            "stride": metadata.stride,
        }
    return [each and _stored(each) for each in metadata]


def _restored(stored: Any) -> ResultMetadata:
    if stored == "written":
        return Written()
    if isinstance(stored, list):
        return tuple([None if each is None else _tensor_metadata(each) for each in stored])
    return _tensor_metadata(stored)


def _num_bytes(dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Returns the bytes from the first to the last element, at least those of all elements."""
    reach = 1 + sum(max(size - 1, 0) * step for size, step in zip(shape, stride, strict=True))
    return dtype.itemsize * max(reach, math.prod(shape))


def _tensor_metadata(stored: Mapping[str, Any]) -> TensorMetadata:
    dtype = getattr(torch, stored["dtype"])
    shape, stride = tuple(stored["shape"]), tuple(stored["stride"])
    if not isinstance(dtype, torch.dtype) or len(shape) != len(stride):
        raise ValueError(f"{stored} is no metadata of a tensor")
    if not all(type(number) is int and number >= 0 for number in (*shape, *stride)):
        raise ValueError(f"{stored} has a size that is no natural number")
    if _num_bytes(dtype, shape, stride) > _MAX_BYTES:
        raise ValueError(f"{stored} is larger than any memory")
    return TensorMetadata(dtype, shape, stride)
