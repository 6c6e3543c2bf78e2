"""Raw operators of TensorFlow that rearrange elements, or return shapes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from poptorch_emu.keras.tensorflow.functions.raw_call import RawCall, Row, integers, plain


def of_shape(x: Any) -> Row:
    """Returns a row whose outputs follow from shapes, so that they stay on the host."""

    def call_with(call: RawCall, *inputs: Any) -> Any:
        kind = call.op.outputs[0].dtype.as_numpy_dtype
        found = [np.asarray(x(each.shape), kind) for each in inputs]
        return found if call.op.type == "ShapeN" else found[0]

    return Row(call_with)


def _squeeze(call: RawCall, x: torch.Tensor) -> torch.Tensor:
    axes = call.attr("squeeze_dims")
    return x.squeeze([int(axis) for axis in axes]) if axes else x.squeeze()


def _split(call: RawCall, axis: Any, x: torch.Tensor) -> list[torch.Tensor]:
    axis, count = int(axis), call.attr("num_split")
    return (
        list(torch.split(x, max(x.shape[axis] // count, 1), axis)) if x.shape[axis] else [x] * count
    )


def _split_by_sizes(call: RawCall, x: torch.Tensor, sizes: Any, axis: Any) -> list[torch.Tensor]:
    axis, wanted = int(axis), integers(sizes)
    if -1 in wanted:
        wanted[wanted.index(-1)] = x.shape[axis] - sum(wanted) - 1
    return list(torch.split(x, wanted, axis))


def _slice(call: RawCall, x: torch.Tensor, begin: Any, size: Any) -> torch.Tensor:
    for axis, (first, length) in enumerate(zip(integers(begin), integers(size), strict=True)):
        x = x.narrow(axis, first, x.shape[axis] - first if length == -1 else length)
    return x


def _strided_slice(call: RawCall, x: Any, begin: Any, end: Any, strides: Any) -> torch.Tensor:
    """Returns a slice, with TensorFlow's masks translated to Python's index entries."""
    masks = {name: call.attr(f"{name}_mask") for name in _MASKS}
    entries: list[Any] = []
    for number, (first, last, step) in enumerate(
        zip(integers(begin), integers(end), integers(strides), strict=True)
    ):
        bit = 1 << number
        if masks["ellipsis"] & bit:
            entries.append(Ellipsis)
        elif masks["new_axis"] & bit:
            entries.append(None)
        elif masks["shrink_axis"] & bit:
            entries.append(first)
        else:
            start = None if masks["begin"] & bit else first
            stop = None if masks["end"] & bit else last
            entries.append(slice(start, stop, step))
    return _without_negative_steps(x, entries)


_MASKS = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")


def _without_negative_steps(x: torch.Tensor, entries: list[Any]) -> torch.Tensor:
    """Applies index entries, with negative steps taken from a flipped axis."""
    num_of_axes = sum(each is not None and each is not Ellipsis for each in entries)
    if Ellipsis not in entries:
        entries = [*entries, Ellipsis]
    where = entries.index(Ellipsis)
    entries[where : where + 1] = [slice(None)] * (x.dim() - num_of_axes)
    axis = 0
    for number, each in enumerate(entries):
        if isinstance(each, slice) and each.step is not None and each.step < 0:
            x = x.flip(axis)
            first, last, step = each.indices(x.shape[axis])
            size = x.shape[axis]
            entries[number] = slice(size - 1 - first, max(size - 1 - last, 0), -step)
        axis += each is not None
    return x[tuple(entries)]


def _pad(call: RawCall, x: torch.Tensor, paddings: Any, value: Any = 0) -> torch.Tensor:
    amounts = [int(each) for pair in reversed(np.asarray(paddings).tolist()) for each in pair]
    if x.dtype is torch.bool:
        return torch.nn.functional.pad(x.to(torch.uint8), amounts, value=int(value)).bool()
    return torch.nn.functional.pad(x, amounts, value=np.asarray(value).item())


def _mirror_pad(call: RawCall, x: torch.Tensor, paddings: Any) -> torch.Tensor:
    mode = call.attr("mode").lower()
    for axis, pair in enumerate(np.asarray(paddings).tolist()):
        if any(pair):
            places = np.pad(np.arange(x.shape[axis]), pair, mode=mode)
            x = x.index_select(axis, torch.as_tensor(places, device=x.device))
    return x


def gather(call: RawCall, params: torch.Tensor, indices: torch.Tensor, axis: Any) -> torch.Tensor:
    """Returns slices of `params` along an axis; the first `batch_dims` axes belong together."""
    batch = call.attr("batch_dims")
    batch = batch + indices.dim() if batch < 0 else batch
    number = int(axis) % params.dim()
    if batch == 0:
        flat = params.index_select(number, indices.reshape(-1).to(torch.int64))
        return flat.reshape([*params.shape[:number], *indices.shape, *params.shape[number + 1 :]])
    lead = math.prod(params.shape[:batch])
    middle, rest = params.shape[batch:number], params.shape[number + 1 :]
    values = params.reshape(lead, math.prod(middle), params.shape[number], math.prod(rest))
    rows = indices.reshape(lead, 1, -1, 1).to(torch.int64)
    rows = rows.expand(lead, values.shape[1], rows.shape[2], values.shape[3])
    found = torch.gather(values, 2, rows)
    return found.reshape([*params.shape[:batch], *middle, *indices.shape[batch:], *rest])


def _flat_rows(indices: torch.Tensor, outer: Any) -> torch.Tensor:
    """Returns row numbers in the flattened outer axes, from index vectors in the last axis."""
    rows = torch.zeros(indices.shape[:-1], dtype=torch.int64, device=indices.device)
    for number, size in enumerate(outer):
        rows = rows * size + indices[..., number].to(torch.int64)
    return rows


def _gather_nd(call: RawCall, params: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    depth = indices.shape[-1]
    outer, inner = params.shape[:depth], params.shape[depth:]
    rows = _flat_rows(indices, outer)
    found = params.reshape([math.prod(outer), *inner]).index_select(0, rows.reshape(-1))
    return found.reshape([*rows.shape, *inner])


def _scattered(
    start: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, reduce: str
) -> torch.Tensor:
    depth = indices.shape[-1]
    outer, inner = start.shape[:depth], start.shape[depth:]
    rows = _flat_rows(indices, outer).reshape(-1)
    flat = start.reshape([math.prod(outer), *inner])
    values = updates.reshape([-1, *inner])
    if reduce == "sum":
        return flat.index_add(0, rows, values).reshape(start.shape)
    index = rows.reshape([-1, *[1] * len(inner)]).expand(values.shape)
    if reduce == "replace":
        return flat.scatter(0, index, values).reshape(start.shape)
    return flat.scatter_reduce(0, index, values, reduce, include_self=True).reshape(start.shape)


def _scatter_nd(call: RawCall, indices: Any, updates: Any, shape: Any) -> torch.Tensor:
    return _scattered(updates.new_zeros(integers(shape)), indices, updates, "sum")


def _scatter(reduce: str) -> Row:
    return Row(lambda call, x, indices, updates: _scattered(x, indices, updates, reduce))


def _found_places(call: RawCall, numbers: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    is_right = call.op.type == "UpperBound"
    found = torch.searchsorted(numbers.contiguous(), values.contiguous(), right=is_right)
    return found.to(call.type_of_output())


def _one_hot(call: RawCall, indices: Any, depth: Any, on: Any, off: Any) -> torch.Tensor:
    axis = call.attr("axis")
    axis = indices.dim() if axis == -1 else axis
    numbers = torch.arange(int(depth), device=indices.device, dtype=indices.dtype)
    numbers = numbers.reshape([-1, *[1] * (indices.dim() - axis)])
    return torch.where(indices.unsqueeze(axis) == numbers, on, off)


def _roll(call: RawCall, x: torch.Tensor, shift: Any, axis: Any) -> torch.Tensor:
    for by, along in zip(integers(shift), integers(axis), strict=True):
        x = torch.roll(x, by, along)
    return x


def _reverse_sequence(call: RawCall, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    along, batch = call.attr("seq_dim"), call.attr("batch_dim")
    places = torch.arange(x.shape[along], device=x.device)
    moved = x.movedim((batch, along), (0, 1))
    lengths = lengths.reshape(-1, 1).to(torch.int64)
    rows = torch.where(places < lengths, lengths - 1 - places, places)
    index = rows.reshape([*rows.shape, *[1] * (moved.dim() - 2)]).expand(moved.shape)
    return torch.gather(moved, 1, index).movedim((0, 1), (batch, along))


def _band_part(call: RawCall, x: torch.Tensor, lower: Any, upper: Any) -> torch.Tensor:
    rows = torch.arange(x.shape[-2], device=x.device)[:, None]
    columns = torch.arange(x.shape[-1], device=x.device)
    below, above = int(lower), int(upper)
    keeps = (rows - columns <= below) | torch.full((1, 1), below < 0, device=x.device)
    keeps = keeps & ((columns - rows <= above) | torch.full((1, 1), above < 0, device=x.device))
    return torch.where(keeps, x, torch.zeros_like(x))


def _diagonal(call: RawCall, x: torch.Tensor, k: Any, *others: Any) -> torch.Tensor:
    if np.size(k) != 1:
        raise call.refuse("of several diagonals", "Take one diagonal at a time")
    return torch.diagonal(x, int(k), -2, -1)


def _of_diagonal(
    call: RawCall, x: torch.Tensor, k: Any, rows: Any, columns: Any, padding: Any, *_: Any
) -> torch.Tensor:
    if np.size(k) != 1 or int(rows) != -1 or int(columns) != -1 or np.asarray(padding).item() != 0:
        raise call.refuse(
            "with several diagonals, num_rows, num_cols or padding_value", "Leave them out"
        )
    return torch.diag_embed(x, int(k), -2, -1)


def _space_to_batch(call: RawCall, x: torch.Tensor, block: Any, paddings: Any) -> torch.Tensor:
    sizes, pads = integers(block), np.asarray(paddings).tolist()
    count, rest = len(sizes), x.dim() - 1 - len(sizes)
    x = _pad(call, x, [[0, 0], *pads, *[[0, 0]] * rest])
    shape = [x.shape[0]]
    for axis, size in enumerate(sizes):
        shape += [x.shape[axis + 1] // size, size]
    x = x.reshape([*shape, *x.shape[count + 1 :]])
    order = [*range(2, 2 * count + 1, 2), 0, *range(1, 2 * count, 2)]
    x = x.permute([*order, *range(2 * count + 1, x.dim())])
    outer = [math.prod(x.shape[: count + 1]), *x.shape[count + 1 :]]
    return x.reshape(outer)


def _batch_to_space(call: RawCall, x: torch.Tensor, block: Any, crops: Any) -> torch.Tensor:
    sizes, cuts = integers(block), np.asarray(crops).tolist()
    count = len(sizes)
    batch = x.shape[0] // math.prod(sizes)
    x = x.reshape([*sizes, batch, *x.shape[1:]])
    order = [count]
    for axis in range(count):
        order += [count + 1 + axis, axis]
    x = x.permute([*order, *range(2 * count + 1, x.dim())])
    spatial = [x.shape[1 + 2 * axis] * sizes[axis] for axis in range(count)]
    x = x.reshape([batch, *spatial, *x.shape[2 * count + 1 :]])
    for axis, (first, last) in enumerate(cuts):
        x = x.narrow(axis + 1, first, x.shape[axis + 1] - first - last)
    return x


ROWS = {
    "BatchToSpaceND": Row(_batch_to_space, host=(1, 2)),
    "BroadcastTo": Row(lambda call, x, shape: x.expand(integers(shape)), host=(1,)),
    "ConcatV2": Row(lambda call, *inputs: torch.cat(inputs[:-1], int(inputs[-1])), host=(-1,)),
    "Diag": Row(lambda call, x: torch.diag(x.reshape(-1)).reshape([*x.shape, *x.shape])),
    "EnsureShape": plain(lambda x: x),
    "ExpandDims": Row(lambda call, x, axis: x.unsqueeze(int(axis)), host=(1,)),
    "Fill": Row(lambda call, sizes, value: value.expand(integers(sizes)), host=(0,)),
    "GatherNd": Row(_gather_nd),
    "GatherV2": Row(gather, host=(2,)),
    "Identity": plain(lambda x: x),
    "IdentityN": Row(lambda call, *inputs: list(inputs)),
    "LowerBound": Row(_found_places),
    "MatrixBandPart": Row(_band_part, host=(1, 2)),
    "MatrixDiagPartV3": Row(_diagonal, host=(1, 2)),
    "MatrixDiagV3": Row(_of_diagonal, host=(1, 2, 3, 4)),
    "MirrorPad": Row(_mirror_pad, host=(1,)),
    "OneHot": Row(_one_hot, host=(1,)),
    "Pack": Row(lambda call, *inputs: torch.stack(inputs, call.attr("axis"))),
    "Pad": Row(_pad, host=(1,)),
    "PadV2": Row(_pad, host=(1, 2)),
    "PreventGradient": plain(torch.detach),
    "Range": Row(torch.arange, host=(0, 1, 2)),  # TensorFlow itself computes it, on the host.
    "Rank": of_shape(len),
    "Reshape": Row(lambda call, x, shape: x.reshape(integers(shape)), host=(1,)),
    "ReverseSequence": Row(_reverse_sequence),
    "ReverseV2": Row(lambda call, x, axes: x.flip(integers(axes)), host=(1,)),
    "Roll": Row(_roll, host=(1, 2)),
    "ScatterNd": Row(_scatter_nd, host=(2,)),
    "Shape": of_shape(tuple),
    "ShapeN": of_shape(tuple),
    "Size": of_shape(math.prod),
    "Slice": Row(_slice, host=(1, 2)),
    "Snapshot": plain(lambda x: x),
    "SpaceToBatchND": Row(_space_to_batch, host=(1, 2)),
    "Split": Row(_split, host=(0,)),
    "SplitV": Row(_split_by_sizes, host=(1, 2)),
    "Squeeze": Row(_squeeze),
    "StridedSlice": Row(_strided_slice, host=(1, 2, 3)),
    "TensorScatterAdd": _scatter("sum"),
    "TensorScatterMax": _scatter("amax"),
    "TensorScatterMin": _scatter("amin"),
    "TensorScatterSub": Row(lambda call, x, i, updates: _scattered(x, i, -updates, "sum")),
    "TensorScatterUpdate": _scatter("replace"),
    "Tile": Row(lambda call, x, multiples: x.tile(integers(multiples)), host=(1,)),
    "Transpose": Row(lambda call, x, perm: x.permute(integers(perm)), host=(1,)),
    "Unpack": Row(lambda call, x: list(torch.unbind(x, call.attr("axis")))),
    "UpperBound": Row(_found_places),
}
