"""Inputs that replace the host's data, so that a run measures the model without its host."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from poptorch_emu.config import SyntheticData

_SEED = 0


def synthetic_inputs(tensors: Iterable[torch.Tensor], kind: SyntheticData) -> list[torch.Tensor]:
    """Returns tensors of the same shapes and types, with the same values in each call.

    Integers and booleans are always zero, because most of them are indices and labels, for which a
    random number would be out of range.
    """
    generator = torch.Generator().manual_seed(_SEED)
    return [_values(tensor, kind, generator) for tensor in tensors]


def _values(tensor: torch.Tensor, kind: SyntheticData, generator: torch.Generator) -> torch.Tensor:
    values = torch.zeros(tensor.shape, dtype=tensor.dtype)
    if values.is_floating_point() and kind is SyntheticData.RANDOM_NORMAL:
        values.normal_(generator=generator)
    elif values.is_floating_point() and kind is SyntheticData.RANDOM_UNIFORM:
        values.uniform_(generator=generator)
    return values
