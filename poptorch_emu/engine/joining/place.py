"""Where the rows of several micro-batches lie in one tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Place:
    """How pieces of one shape lie in the tensor that joins them.

    A piece is seen as (..., outer, inner, ...) where its dimension `dim` was, and the tensor as
    (..., outer, pieces, inner, ...). With `outer` 1 the pieces lie behind each other.
    """

    dim: int
    outer: int = 1

    def shape(self, piece: Sequence[int], count: int) -> list[int]:
        """Returns the shape of the tensor that joins pieces of a shape."""
        return [size * count if dim == self.dim else size for dim, size in enumerate(piece)]

    def split(self, piece: Sequence[int]) -> tuple[int, int]:
        """Returns the two sizes, `outer` and `inner`, as which `dim` of a piece is seen."""
        return self.outer, piece[self.dim] // self.outer

    def moved(self, by: int) -> Place:
        """Returns the place if so many dimensions are put in before `dim`."""
        return Place(self.dim + by, self.outer)

    def seen_as(self, piece: Sequence[int], other: Sequence[int]) -> Place | None:
        """Returns the place when pieces are seen in another shape with the same elements in order.

        Returns `None` if no dimension of that shape has all pieces.
        """
        if 0 in piece or 0 in other:
            return None
        before = math.prod(piece[: self.dim]) * self.outer
        found, passed = [], 1
        for dim, size in enumerate(other):
            outer, rest = divmod(before, passed)
            if rest == 0 and outer >= 1 and size % outer == 0:
                found.append(Place(dim, outer))
            passed *= size
        # Of several, the rows of a single one are best in a dimension of length 1, others in a
        # longer one, and not behind all that is in it.
        is_single = piece[self.dim] == 1
        return min(
            found,
            key=lambda place: (
                (other[place.dim] == 1) is not is_single,
                place.outer == other[place.dim] > 1,
            ),
            default=None,
        )


def joined_value(piece: torch.Tensor, place: Place, count: int) -> torch.Tensor:
    """Returns a tensor without data that is like the one that joins pieces like `piece`.

    Dimensions outside of the joined one in memory have as many times the stride.
    """
    strides = piece.stride()
    own = strides[place.dim]
    scaled = [
        stride * count if stride > own or (stride == own and dim < place.dim) else stride
        for dim, stride in enumerate(strides)
    ]
    shape = place.shape(piece.shape, count)
    return torch.empty_strided(shape, scaled, dtype=piece.dtype, device="meta")
