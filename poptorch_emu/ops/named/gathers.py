"""FastGatherLastDim: selects elements of the last axis by position."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from poptorch_emu.ops.named.named_operator import Attributes


def gather_last_axis(inputs: Sequence[torch.Tensor], given: Attributes) -> torch.Tensor:
    """Returns the elements of each row of `data` at the positions in the same row of `index`.

    Raises:
        ValueError: the shapes differ on an axis before the last.
    """
    data, index = inputs
    if data.dim() != index.dim() or data.shape[:-1] != index.shape[:-1]:
        raise ValueError(
            f"data has shape {list(data.shape)} and the indices {list(index.shape)}; all sizes but "
            "the last must be equal"
        )
    return data.gather(-1, index.long())
