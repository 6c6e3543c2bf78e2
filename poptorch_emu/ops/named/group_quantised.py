"""GroupQuantizeDecompress: unpacks 4-bit numbers from 16-bit words and scales each group."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from poptorch_emu.ops.named.named_operator import Attributes

# A word holds four numbers. Of sixteen numbers, word j holds those at j, 4 + j, 8 + j and 12 + j.
_BITS, _NUMBERS, _WORDS = 4, 4, 4


def decompressed(inputs: Sequence[torch.Tensor], given: Attributes) -> torch.Tensor:
    """Returns values `q * scale + bias`, (rows, groups * n * 4), of words (rows, groups, n).

    Raises:
        ValueError: a shape or a dtype is wrong.
    """
    packed, scale, bias = inputs
    if packed.dim() != 3 or packed.size(2) % _WORDS or packed.dtype is not torch.int16:
        raise ValueError(
            f"the packed numbers have shape {list(packed.shape)} and type {packed.dtype}; expected "
            "(rows, groups, words) with a multiple of 4 words, of torch.int16"
        )
    for name, value in (("scale", scale), ("bias", bias)):
        if value.dim() != 3 or value.size(2) != 1 or value.shape[:2] != packed.shape[:2]:
            raise ValueError(
                f"the {name} has shape {list(value.shape)}; expected "
                f"{[*packed.shape[:2], 1]}, one for each group"
            )
    rows, groups, words = packed.shape
    runs = packed.reshape(rows, groups, words // _WORDS, 1, _WORDS).to(torch.int32)
    shifts = torch.arange(0, _BITS * _NUMBERS, _BITS, dtype=torch.int32, device=packed.device)
    numbers = (runs >> shifts.reshape(-1, 1)) & (2**_BITS - 1)
    values = numbers.reshape(rows, groups, words * _NUMBERS).to(scale.dtype)
    result: torch.Tensor = values * scale + bias.to(scale.dtype)
    return result.reshape(rows, -1)
