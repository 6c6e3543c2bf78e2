"""Distances between all rows of two matrices, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from poptorch_emu.ops.named.named_operator import Attributes


def distance_matrix(rows: torch.Tensor, others: torch.Tensor, p: int) -> torch.Tensor:
    """Returns (M, N) distances of rows (M, K) and (N, K) by norm p, summed in float32.

    The gradient of a distance of 0 is 0.

    Raises:
        ValueError: the tensors are not matrices with rows of equal length.
    """
    check_rows(rows, others)
    # A product of matrices would lose the digits of small distances.
    mode = "donot_use_mm_for_euclid_dist"
    return torch.cdist(rows.float(), others.float(), float(p), compute_mode=mode).to(rows.dtype)


def check_rows(rows: torch.Tensor, others: torch.Tensor) -> None:
    """Checks that two tensors are matrices with rows of equal length.

    Raises:
        ValueError: a tensor is not a matrix, or the lengths of rows differ.
    """
    if rows.dim() != 2 or others.dim() != 2 or rows.size(1) != others.size(1):
        raise ValueError(
            f"the tensors have shapes {list(rows.shape)} and {list(others.shape)}; expected (M, K) "
            "and (N, K)"
        )


def distances(p: int) -> Callable[[Sequence[torch.Tensor], Attributes], torch.Tensor]:
    """Returns the operator that computes distances by norm p."""
    return lambda inputs, given: distance_matrix(inputs[0], inputs[1], p)
