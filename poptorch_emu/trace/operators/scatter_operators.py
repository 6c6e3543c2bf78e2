"""The operators of torch_scatter as ATen operations, which the engine runs faster and can cost.

As that library documents, an operator reduces values at positions with the same index (`scatter`,
and `segment_coo` for a sorted index) or between two pointers (`segment_csr`). Where no value
arrives, the result is 0, or 1 for a product, and the position of a smallest or largest value is the
number of values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.trace.places.source_line import user_source
from poptorch_emu.trace.recording import regions
from poptorch_emu.trace.values.value_guards import hint
from poptorch_emu.troubleshooting import Topic

Result = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
# Reduces (values, index of the same shape, axis, size of the result's axis).
Reduction = Callable[[torch.Tensor, torch.Tensor, int, int], Any]
# Merges (`out`, result of a reduction, number of reduced values) into `out`.
Merge = Callable[[torch.Tensor, Any, int], Any]


def _sum(src: torch.Tensor, index: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    return _filled(src, dim, size, 0).scatter_add(dim, index, src)


def _mul(src: torch.Tensor, index: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    return _filled(src, dim, size, 1).scatter_reduce(dim, index, src, "prod")


def _mean(src: torch.Tensor, index: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    counts = _sum(torch.ones_like(src), index, dim, size).clamp(min=1)
    total = _sum(src, index, dim, size)
    if src.is_floating_point():
        return total / counts
    return total.div(counts, rounding_mode="floor")


def _extreme(reduce: str) -> Reduction:
    """Returns the reduction to the smallest or largest values with their first positions."""

    def run(
        src: torch.Tensor, index: torch.Tensor, dim: int, size: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        length = src.size(dim)
        with torch.no_grad():
            best = _filled(src, dim, size, 0).scatter_reduce(
                dim, index, src, reduce, include_self=False
            )
            shape = [length if axis == dim else 1 for axis in range(src.dim())]
            positions = torch.arange(length, device=src.device).reshape(shape).expand(src.shape)
            is_best = src == best.gather(dim, index)
            first = _filled(positions, dim, size, length).scatter_reduce(
                dim, index, positions.where(is_best, length), "amin"
            )
        # The gradient goes to the first of several equal values.
        value = src.gather(dim, first.clamp(max=length - 1)) if length else best
        return value.masked_fill(first == length, 0), first

    return run


def _filled(like: torch.Tensor, dim: int, size: int, value: int) -> torch.Tensor:
    shape = [size if axis == dim else length for axis, length in enumerate(like.shape)]
    return like.new_full(shape, value)


def _better(is_better: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Merge:
    """Returns the merge of smallest or largest values, with their positions, into `out`."""

    def merge(out: torch.Tensor, result: Any, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        value, first = result
        wins = (first < length) & is_better(value, out)
        return out.copy_(torch.where(wins, value, out)), first.masked_fill(~wins, length)

    return merge


# Functions that merge a result into `out`, for the reductions that accept it.
_MERGES: dict[str, Merge] = {
    "sum": lambda out, result, _: out.add_(result),
    "mul": lambda out, result, _: out.mul_(result),
    "min": _better(torch.lt),
    "max": _better(torch.gt),
}


def _scatter(reduction: Reduction, merge: Merge | None) -> Callable[..., Result]:
    def run(
        src: torch.Tensor,
        index: torch.Tensor,
        dim: int = -1,
        out: torch.Tensor | None = None,
        dim_size: int | None = None,
    ) -> Any:
        if merge is None:
            _refuse(out)
        dim = dim % src.dim()
        if index.dim() == 1:
            index = index.reshape([-1 if axis == dim else 1 for axis in range(src.dim())])
        while index.dim() < src.dim():
            index = index.unsqueeze(-1)
        size = _size(index, dim_size) if out is None else out.size(dim)
        result = reduction(src, index.expand(src.shape), dim, size)
        return result if out is None or merge is None else merge(out, result, src.size(dim))

    return run


def _segment_coo(reduction: Reduction) -> Callable[..., Result]:
    def run(
        src: torch.Tensor,
        index: torch.Tensor,
        out: torch.Tensor | None = None,
        dim_size: int | None = None,
    ) -> Any:
        _refuse(out)
        return reduction(src, _over(index, src), index.dim() - 1, _size(index, dim_size))

    return run


def _segment_csr(reduction: Reduction) -> Callable[..., Result]:
    def run(src: torch.Tensor, indptr: torch.Tensor, out: torch.Tensor | None = None) -> Any:
        _refuse(out)
        dim, size = indptr.dim() - 1, indptr.size(-1) - 1
        bounds = indptr.long().expand(*src.shape[:dim], size + 1).contiguous()
        places = torch.arange(src.size(dim), device=src.device).expand(src.shape[: dim + 1])
        segment = torch.searchsorted(bounds[..., 1:].contiguous(), places.contiguous(), right=True)
        # Values before the first pointer or after the last one go to an additional segment.
        segment = segment.masked_fill(places < bounds[..., :1], size)
        result = reduction(src, _over(segment, src), dim, size + 1)
        if isinstance(result, tuple):
            return result[0].narrow(dim, 0, size), result[1].narrow(dim, 0, size)
        return result.narrow(dim, 0, size)

    return run


def _gather_coo(
    src: torch.Tensor, index: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    _refuse(out)
    dim = index.dim() - 1
    shape = [*src.shape[:dim], index.size(-1), *src.shape[dim + 1 :]]
    return src.gather(dim, _over(index, src.new_empty(shape)))


def _gather_csr(
    src: torch.Tensor, indptr: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    _refuse(out)
    known = _known(indptr)
    if known is None or indptr.dim() != 1:
        raise compiler_error(
            f"torch_scatter.gather_csr at {user_source()} makes a tensor whose shape depends on "
            "data: its pointers have no known values, or several axes. Use gather_coo with an "
            f"index, or make the pointers a constant. {hint()}; {Topic.DATA_DEPENDENT_SHAPE}"
        )
    index = torch.repeat_interleave(known.diff())
    return src.index_select(0, index.to(src.device))


def _over(index: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    """Returns an index over the first axes of `src`, expanded to each of its elements."""
    shape = [*index.shape, *[1] * (src.dim() - index.dim())]
    return index.long().reshape(shape).expand(src.shape)


def _size(index: torch.Tensor, dim_size: int | None) -> int:
    if dim_size is not None:
        return dim_size
    known = _known(index.max()) if index.numel() else torch.tensor(-1)
    if known is None:
        raise compiler_error(
            f"An operator of torch_scatter at {user_source()} makes a tensor whose shape depends "
            "on data: how many rows it has follows from the largest index. Pass dim_size=, a "
            f"Python number. {hint()}; {Topic.DATA_DEPENDENT_SHAPE}"
        )
    return int(known) + 1


def _known(tensor: torch.Tensor) -> torch.Tensor | None:
    return regions.current().recorder.known.value(tensor)


def _refuse(out: torch.Tensor | None) -> None:
    if out is not None:
        raise compiler_error(
            f"An operator of torch_scatter at {user_source()} is given `out`, which it would write "
            "into. Leave it out, and combine its result with that tensor by an operation."
        )


_REDUCTIONS = {
    "sum": _sum,
    "mul": _mul,
    "mean": _mean,
    "min": _extreme("amin"),
    "max": _extreme("amax"),
}

SCATTER_OPERATORS: dict[str, Callable[..., Any]] = {
    **{
        f"torch_scatter::scatter_{name}": _scatter(r, _MERGES.get(name))
        for name, r in _REDUCTIONS.items()
    },
    **{f"torch_scatter::segment_{name}_coo": _segment_coo(r) for name, r in _REDUCTIONS.items()},
    **{f"torch_scatter::segment_{name}_csr": _segment_csr(r) for name, r in _REDUCTIONS.items()},
    "torch_scatter::gather_coo": _gather_coo,
    "torch_scatter::gather_csr": _gather_csr,
}
"""Function that is traced for each operator of torch_scatter."""
