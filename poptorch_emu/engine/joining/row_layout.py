"""The position of the rows of several micro-batches in one tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class RowLayout:
    """The position of pieces of one shape in the tensor that joins them.

    Dimension `dim` of a piece is split as (..., outer, inner, ...), and of the joined tensor as
    (..., outer, pieces, inner, ...). With `outer` 1 the pieces lie one after the other.
    """

    dim: int
    outer: int = 1

    def shape(self, piece: Sequence[int], count: int) -> list[int]:
        """Returns the shape of the tensor that joins `count` pieces of shape `piece`."""
        return [size * count if dim == self.dim else size for dim, size in enumerate(piece)]

    def split(self, piece: Sequence[int]) -> tuple[int, int]:
        """Returns the sizes `outer` and `inner` into which dimension `dim` of a piece is split."""
        return self.outer, piece[self.dim] // self.outer

    def moved(self, by: int) -> RowLayout:
        """Returns the layout after `by` dimensions are inserted before `dim`."""
        return RowLayout(self.dim + by, self.outer)

    def seen_as(self, piece: Sequence[int], other: Sequence[int]) -> RowLayout | None:
        """Returns the layout after pieces are viewed as `other`, with elements in the same order.

        Returns `None` if no dimension of `other` can contain all pieces.
        """
        if 0 in piece or 0 in other:
            return None
        before = math.prod(piece[: self.dim]) * self.outer
        found, passed = [], 1
        for dim, size in enumerate(other):
            outer, rest = divmod(before, passed)
            if rest == 0 and outer >= 1 and size % outer == 0:
                found.append(RowLayout(dim, outer))
            passed *= size
        # If several dimensions qualify, a piece of one row is best in a dimension of length 1, and
        # a longer piece in a longer one. A layout that splits a whole dimension comes last.
        is_single = piece[self.dim] == 1
        return min(
            found,
            key=lambda layout: (
                (other[layout.dim] == 1) is not is_single,
                layout.outer == other[layout.dim] > 1,
            ),
            default=None,
        )


def joined_value(piece: torch.Tensor, layout: RowLayout, count: int) -> torch.Tensor:
    """Returns a tensor on the meta device with the metadata of the joined tensor.

    Dimensions that lie outside of the joined dimension in memory have `count` times the stride.
    """
    strides = piece.stride()
    own = strides[layout.dim]
    scaled = [
        stride * count if stride > own or (stride == own and dim < layout.dim) else stride
        for dim, stride in enumerate(strides)
    ]
    shape = layout.shape(piece.shape, count)
    return torch.empty_strided(shape, scaled, dtype=piece.dtype, device="meta")
