"""Converts batches between Keras's form and the arguments of an executor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

import keras
import torch

from poptorch_emu.keras.capture.integers import check_integers

Batch = tuple[Any, Any, Any]  # x, y and sample weights: structures of tensors, or None.

_NESTED = (list, tuple, dict)


def unpacked(data: Any) -> Batch:
    """Returns one batch of Keras as tensors on the host."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    return _mapped(_tensor, x), _mapped(_tensor, y), _mapped(_tensor, sample_weight)


def tensors_of(batch: Batch) -> list[torch.Tensor]:
    """Returns the tensors of a batch in order."""
    found: list[torch.Tensor] = []
    for part in batch:
        leaves = keras.tree.flatten(part) if isinstance(part, _NESTED) else [part]
        found += [leaf for leaf in leaves if leaf is not None]
    return found


def with_leaves(structure: Any, leaves: Iterable[Any], is_slot: Callable[[Any], bool]) -> Any:
    """Returns `structure` with leaves replaced where `is_slot` holds, in Keras's order of leaves.

    Keras maps a dict in insertion order, but flattens it in sorted order.
    """
    remaining = iter(leaves)
    flat = [next(remaining) if is_slot(leaf) else leaf for leaf in keras.tree.flatten(structure)]
    return keras.tree.pack_sequence_as(structure, flat)


def form_of(batch: Batch) -> tuple[Any, ...]:
    """Returns the shapes and types of a batch; batches with equal forms can share a program."""
    return tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors_of(batch))


def num_rows(batch: Batch) -> int:
    """Returns the number of samples in a batch."""
    return len(tensors_of(batch)[0])


def in_runs(batches: Sequence[Batch]) -> list[list[Batch]]:
    """Returns the batches divided into runs of batches with the same form."""
    return [list(run) for _, run in groupby(batches, form_of)]


def joined(batches: Sequence[Batch]) -> Batch:
    """Returns one batch with the rows of all batches."""
    if len(batches) == 1:
        return batches[0]
    x, y, sample_weight = (_mapped(_cat, *parts) for parts in zip(*batches, strict=True))
    return x, y, sample_weight


def _mapped(function: Callable[..., Any], *structures: Any) -> Any:
    """Returns a structure with the results of a function on the leaves of these structures."""
    if isinstance(structures[0], _NESTED):
        return keras.tree.map_structure(function, *structures)
    return function(*structures)  # Much faster than walking through a structure with one leaf.


def _cat(*leaves: torch.Tensor | None) -> torch.Tensor | None:
    tensors = [leaf for leaf in leaves if leaf is not None]
    return torch.cat(tensors) if tensors else None


def _tensor(leaf: Any) -> torch.Tensor | None:
    if leaf is None:
        return None
    tensor = torch.as_tensor(leaf)
    check_integers(tensor.cpu())
    # Layers would convert float64 first, because IPUs have no double precision.
    return tensor.float() if tensor.dtype is torch.float64 else tensor
