"""Computes, from shapes alone, how views and copies order the elements of a tensor.

A chain of views, transposes and copies moves elements and changes none. A chain of any length is
equivalent to one split of the first tensor's dimensions, one permutation of the resulting
dimensions, and one view of the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from poptorch_emu.ir.arguments import Call, arguments_of

aten = torch.ops.aten

# Operators that only permute dimensions.
PERMUTATIONS = {aten.transpose.int, aten.t.default, aten.permute.default}


@dataclass(frozen=True)
class Stretch:
    """A part of a dimension of the first tensor: `size` indices with a distance of `step`."""

    dim: int
    step: int
    size: int


@dataclass(frozen=True)
class Arrangement:
    """A tensor described by the stretches of each of its dimensions, outermost stretch first.

    Attributes:
        source: shape of the first tensor.
        dims: stretches of each dimension; empty for a dimension of length 1.
    """

    source: tuple[int, ...]
    dims: tuple[tuple[Stretch, ...], ...]

    @staticmethod
    def of(shape: Sequence[int]) -> Arrangement:
        """Returns the arrangement of the first tensor itself, which must not be empty."""
        whole = (() if size == 1 else (Stretch(dim, 1, size),) for dim, size in enumerate(shape))
        return Arrangement(tuple(shape), tuple(whole))

    @property
    def stretches(self) -> list[Stretch]:
        """All stretches in the order of a contiguous result."""
        return [stretch for dim in self.dims for stretch in dim]

    @property
    def split(self) -> list[Stretch]:
        """All stretches in the order of the first tensor."""
        return sorted(self.stretches, key=lambda stretch: (stretch.dim, -stretch.step))

    @property
    def order(self) -> list[int]:
        """Permutation that turns `split` into `stretches`."""
        place = {stretch: index for index, stretch in enumerate(self.split)}
        return [place[stretch] for stretch in self.stretches]

    @property
    def keeps_rows(self) -> bool:
        """Whether elements of the innermost stretch are adjacent in the first tensor as well."""
        return not self.split or self.split[-1] == self.stretches[-1]

    def permuted(self, order: Sequence[int]) -> Arrangement:
        """Returns the arrangement with its dimensions in another order."""
        return Arrangement(self.source, tuple(self.dims[dim] for dim in order))

    def viewed(self, shape: Sequence[int]) -> Arrangement | None:
        """Returns the arrangement viewed as `shape`; `None` if a dimension would cut a stretch."""
        rest = self.stretches[::-1]
        dims = []
        for size in shape:
            dim: list[Stretch] = []
            missing = size
            while missing > 1:
                stretch = rest.pop()
                if missing % stretch.size == 0:
                    taken = stretch
                elif stretch.size % missing == 0:
                    inner = stretch.size // missing
                    taken = Stretch(stretch.dim, stretch.step * inner, missing)
                    rest.append(Stretch(stretch.dim, stretch.step, inner))
                else:
                    return None
                missing //= taken.size
                _append(dim, taken)
            dims.append(tuple(dim))
        return Arrangement(self.source, tuple(dims))

    def finest(self, but: int) -> list[list[int]]:
        """Returns the shape with all dimensions fully split, except dimension `but`."""
        return [
            [math.prod(sizes(each))] if index == but or not each else sizes(each)
            for index, each in enumerate(self.dims)
        ]

    def resized(self, dim: int, size: int) -> Arrangement:
        """Returns the arrangement for a first tensor with `size` indices in dimension `dim`.

        Dimension `dim` must not be split into several stretches.
        """
        dims = (
            tuple(
                Stretch(dim, 1, size) if stretch.dim == dim else stretch
                for stretch in each
                if stretch.dim != dim or size > 1
            )
            for each in self.dims
        )
        return Arrangement((*self.source[:dim], size, *self.source[dim + 1 :]), tuple(dims))


def _append(dim: list[Stretch], stretch: Stretch) -> None:
    """Adds a stretch, or extends the last one if the two are adjacent in the first tensor."""
    if dim and dim[-1].dim == stretch.dim and dim[-1].step == stretch.step * stretch.size:
        stretch = Stretch(stretch.dim, stretch.step, dim.pop().size * stretch.size)
    dim.append(stretch)


def sizes(stretches: Sequence[Stretch]) -> list[int]:
    """Returns the size of each stretch."""
    return [stretch.size for stretch in stretches]


def order_of(move: Call, num_dims: int) -> list[int]:
    """Returns the permutation of a `t`, `transpose` or `permute` operation."""
    order = list(range(num_dims))
    if move.target is aten.t.default:
        return order[::-1]
    call = arguments_of(move)
    if move.target is aten.permute.default:
        return [dim % num_dims for dim in call.dims]
    one, other = call.dim0 % num_dims, call.dim1 % num_dims
    order[one], order[other] = other, one
    return order
