"""Raw operators of TensorFlow that reduce axes, sort, or accumulate along an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from poptorch_emu.keras.tensorflow.functions.raw_call import RawCall, Row, refusal

_Reduce = Callable[[torch.Tensor, list[int], bool], torch.Tensor]


def axes_of(x: torch.Tensor, axes: Any) -> list[int]:
    """Returns axes as sorted numbers that are not negative."""
    return sorted({int(axis) % x.dim() for axis in np.reshape(axes, -1)}) if x.dim() else []


def _reduction(reduce: _Reduce, of_nothing: Callable[[torch.dtype], Any] | None = None) -> Row:
    """Returns the row of a reduction.

    Args:
        reduce: function of a tensor, axes, and whether the axes remain with size 1.
        of_nothing: function of a type that returns the result over an empty axis; `None` if PyTorch
            has a result.
    """

    def call_with(call: RawCall, x: torch.Tensor, axes: Any) -> torch.Tensor:
        keeps, found = call.attr("keep_dims"), axes_of(x, axes)
        if of_nothing is not None and any(x.shape[axis] == 0 for axis in found):
            shape = [1 if n in found else size for n, size in enumerate(x.shape)]
            empty = x.new_full(shape, of_nothing(x.dtype))
            return empty if keeps else empty.squeeze(found)
        return reduce(x, found, keeps) if found else reduce(x[None], [0], False)

    return Row(call_with, host=(1,))


def _lowest(dtype: torch.dtype) -> Any:
    return -torch.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def _highest(dtype: torch.dtype) -> Any:
    return torch.inf if dtype.is_floating_point else torch.iinfo(dtype).max


def _mean(x: torch.Tensor, axes: list[int], keeps: bool) -> torch.Tensor:
    if x.is_floating_point():
        return torch.mean(x, axes, keeps)
    total = torch.sum(x, axes, keeps, dtype=x.dtype if x.element_size() > 2 else torch.int32)
    count = max(int(np.prod([x.shape[axis] for axis in axes])), 1)
    return torch.div(total, count, rounding_mode="trunc").to(x.dtype)


def _axis_by_axis(reduce: Callable[..., torch.Tensor]) -> Row:
    """Returns the row of a reduction that PyTorch computes over one axis only."""

    def reduced(x: torch.Tensor, axes: list[int], keeps: bool) -> torch.Tensor:
        for axis in reversed(axes):
            x = reduce(x, axis, keeps)
        return x

    return _reduction(reduced)


def _extreme_index(find: Callable[..., torch.Tensor]) -> Row:
    """Returns the row of ArgMax or ArgMin, which return the first of equal elements."""

    def call_with(call: RawCall, x: torch.Tensor, axis: Any) -> torch.Tensor:
        axis = int(axis)
        if x.is_floating_point():  # TensorFlow never chooses NaN.
            worst = _lowest(x.dtype) if find is torch.argmax else _highest(x.dtype)
            x = torch.where(torch.isnan(x), worst, x)
        found = find(x, axis)
        return found.to(call.type_of_output())

    return Row(call_with, host=(1,))


def _cumulative(scan: Callable[..., torch.Tensor], neutral: float) -> Row:
    def call_with(call: RawCall, x: torch.Tensor, axis: Any) -> torch.Tensor:
        axis = int(axis) % x.dim()
        x = x.flip(axis) if call.attr("reverse") else x
        if call.attr("exclusive") and x.shape[axis]:
            first = torch.full_like(x.narrow(axis, 0, 1), neutral)
            x = torch.cat([first, x.narrow(axis, 0, x.shape[axis] - 1)], axis)
        x = scan(x, axis)
        return x.flip(axis) if call.attr("reverse") else x

    return Row(call_with, host=(1,))


def _products_so_far(x: torch.Tensor, axis: int) -> torch.Tensor:
    """Returns cumulative products; in TensorFlow the gradient of elements that are 0 is 0."""
    products = torch.cumprod(x.detach(), axis, dtype=x.dtype)
    if not x.requires_grad:
        return products
    divisor = torch.where(x == 0, torch.inf, x).detach()
    change = torch.where(torch.isfinite(x), (x - x.detach()) / divisor, torch.zeros_like(x))
    return products + products * torch.cumsum(change, axis)


def _top_k(call: RawCall, x: torch.Tensor, k: Any) -> list[torch.Tensor]:
    # The sort is stable, so that equal elements stay in order, also in descending order.
    values, indices = torch.sort(x, dim=-1, descending=True, stable=True)
    return [values[..., : int(k)], indices[..., : int(k)].to(call.type_of_output(1))]


def _segments(reduce: str, of_nothing: Callable[[torch.dtype], Any]) -> Row:
    """Returns the row of an unsorted segment reduction; rows with negative ids are dropped."""

    def call_with(call: RawCall, data: Any, ids: Any, count: Any) -> Any:
        inner = list(data.shape[ids.dim() :])
        rows, flat = data.reshape([-1, *inner]), ids.reshape(-1).to(torch.int64)
        count = int(count)
        start = rows.new_full([count + 1, *inner], of_nothing(rows.dtype))
        # Rows with negative ids go into an additional segment, which is cut off.
        flat = torch.where(flat < 0, count, flat)
        if reduce == "sum":
            found = start.index_add(0, flat, rows)
        else:
            index = flat.reshape([-1, *[1] * len(inner)]).expand(rows.shape)
            found = start.scatter_reduce(0, index, rows, reduce, include_self=True)
        return found[:count]

    return Row(call_with, host=(2,))


def _sum_of_sorted_segments(call: RawCall, data: Any, ids: Any) -> Any:
    """Returns the sums of rows with equal ids, which do not decrease."""
    if ids.size and ((ids[1:] < ids[:-1]).any() or ids[0] < 0):
        raise refusal("SegmentSum of ids that decrease", "Use tf.math.unsorted_segment_sum")
    count = int(ids[-1]) + 1 if ids.size else 0
    places = torch.as_tensor(ids, dtype=torch.int64, device=data.device)
    return _segments("sum", lambda dtype: 0).compute(call, data, places, count)


def _finite(limit: str) -> Callable[[torch.dtype], Any]:
    """Returns a function for the largest or smallest finite number, an empty segment's value."""

    def found(dtype: torch.dtype) -> Any:
        return getattr((torch.finfo if dtype.is_floating_point else torch.iinfo)(dtype), limit)

    return found


ROWS = {
    "All": _axis_by_axis(torch.all),
    "Any": _axis_by_axis(torch.any),
    "ArgMax": _extreme_index(torch.argmax),
    "ArgMin": _extreme_index(torch.argmin),
    "Cumprod": _cumulative(_products_so_far, 1),
    "Cumsum": _cumulative(lambda x, axis: torch.cumsum(x, axis, dtype=x.dtype), 0),
    "EuclideanNorm": _reduction(lambda x, *where: torch.sqrt(torch.square(x).sum(*where))),
    "Max": _reduction(torch.amax, _lowest),
    "Mean": _reduction(_mean),
    "Min": _reduction(torch.amin, _highest),
    "Prod": _axis_by_axis(lambda x, axis, keeps: torch.prod(x, axis, keeps, dtype=x.dtype)),
    "SegmentSum": Row(_sum_of_sorted_segments, host=(1,)),
    "Sum": _reduction(lambda x, axes, keeps: torch.sum(x, axes, keeps, dtype=x.dtype)),
    "TopKV2": Row(_top_k, host=(1,)),
    "UnsortedSegmentMax": _segments("amax", _finite("min")),
    "UnsortedSegmentMin": _segments("amin", _finite("max")),
    "UnsortedSegmentProd": _segments("prod", lambda dtype: 1),
    "UnsortedSegmentSum": _segments("sum", lambda dtype: 0),
}
