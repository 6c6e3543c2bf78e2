"""Generated calls of TensorFlow's raw operators: types, axes, paddings, ties, NaN, no elements."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

FLOATS = (np.float32, np.float16)
INTEGERS = (np.int32, np.int64, np.int8, np.uint8, np.int16)
NUMBERS = (*FLOATS, *INTEGERS)
_SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 30.0]
_SPECIAL_INTEGERS = [0, 1, 2, 3, 5, 7, 100]
_LONG = [2**31, -(2**31) - 1, 2**40 + 7]


@dataclass(frozen=True)
class Sample:
    """One call: the arrays that are the device's, and the attributes and arrays of the host."""

    operator: str
    arrays: dict[str, Any]
    others: dict[str, Any]

    def __str__(self) -> str:
        """Returns the call, with types and shapes for arrays."""
        given = {
            name: [f"{x.dtype}{list(x.shape)}" for x in each]
            if isinstance(each, list)
            else f"{each.dtype}{list(each.shape)}"
            for name, each in self.arrays.items()
        }
        return f"{self.operator}({given}, {self.others})"


def special(dtype: Any, *, reverse: bool = False) -> np.ndarray:
    """Returns numbers at which functions have corners."""
    if dtype is np.bool_:
        return np.array([True, False])
    if np.issubdtype(dtype, np.floating):
        found = np.array(_SPECIAL, dtype)
    else:
        signs = (1,) if np.issubdtype(dtype, np.unsignedinteger) else (1, -1)
        found = np.array([sign * each for sign in signs for each in _SPECIAL_INTEGERS], dtype)
        if dtype is np.int64:
            found = np.append(found, _LONG)
    return found[::-1].copy() if reverse else found


def drawn(shape: Any, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    """Returns random numbers with ties."""
    generator = np.random.default_rng(seed)
    if dtype is np.bool_:
        return generator.integers(0, 2, shape).astype(bool)
    if np.issubdtype(dtype, np.floating):
        return (generator.integers(-12, 13, shape) / 4).astype(dtype)
    low = 0 if np.issubdtype(dtype, np.unsignedinteger) else -5
    return generator.integers(low, 6, shape).astype(dtype)


def _unary(dtypes: Any) -> Callable[[str], Iterator[Sample]]:
    def samples(name: str) -> Iterator[Sample]:
        (first,) = [each.name for each in _definition(name).input_arg]
        for dtype in dtypes:
            for x in (special(dtype), drawn((0, 3), dtype), drawn((), dtype), drawn((2, 3), dtype)):
                yield Sample(name, {first: x}, {})

    return samples


def _binary(dtypes: Any) -> Callable[[str], Iterator[Sample]]:
    def samples(name: str) -> Iterator[Sample]:
        one, other = [each.name for each in _definition(name).input_arg]
        for dtype in dtypes:
            pairs = [
                (special(dtype)[:, None], special(dtype, reverse=True)[None]),
                (drawn((2, 1, 3), dtype), drawn((4, 1), dtype, 1)),
                (drawn((0, 3), dtype), drawn((1, 3), dtype, 1)),
                (drawn((), dtype), drawn((3,), dtype, 1)),
                (drawn((6,), dtype), np.full((6,), 3, dtype)),
            ]
            for x, y in pairs:
                yield Sample(name, {one: x, other: y}, {})

    return samples


def _reduced(dtypes: Any, argument: str = "input") -> Callable[[str], Iterator[Sample]]:
    def samples(name: str) -> Iterator[Sample]:
        for dtype, keeps in itertools.product(dtypes, (False, True)):
            for axes in ([], [0], [1], [-1], [0, 1], [-1, 0]):
                for shape in ((3, 4), (0, 3), (3, 0)):
                    yield _reduction(name, argument, drawn(shape, dtype), axes, keeps)
            yield _reduction(name, argument, drawn((), dtype), [], keeps)
            if dtype is not np.bool_:
                x = np.stack([special(dtype), special(dtype, reverse=True)])
                yield _reduction(name, argument, x, [0], keeps)
                yield _reduction(name, argument, x, [1], keeps)

    return samples


def _reduction(name: str, argument: str, x: Any, axes: Any, keeps: bool) -> Sample:
    return Sample(name, {argument: x}, {"axis": np.array(axes, np.int32), "keep_dims": keeps})


def _extremes(name: str) -> Iterator[Sample]:
    for dtype, axis, kind in itertools.product(NUMBERS, (0, 1, -1), (tf.int32, tf.int64)):
        x = np.stack([special(dtype), special(dtype, reverse=True)])
        for each in (x, drawn((3, 4), dtype), np.zeros((2, 3), dtype)):
            yield Sample(name, {"input": each}, {"dimension": axis, "output_type": kind})


def _cumulative(name: str) -> Iterator[Sample]:
    flags = (False, True)
    for dtype, axis, exclusive, reverse in itertools.product(NUMBERS, (0, -1), flags, flags):
        for x in (drawn((3, 4), dtype), drawn((0, 2), dtype), drawn((2, 0), dtype)):
            yield Sample(name, {"x": x}, {"axis": axis, "exclusive": exclusive, "reverse": reverse})
        if np.issubdtype(dtype, np.floating):
            x = np.array([[1e4, 1, np.nan, 2], [np.inf, 0, 1, 2]], dtype)
            yield Sample(name, {"x": x}, {"axis": axis, "exclusive": exclusive, "reverse": reverse})


def _top_k(name: str) -> Iterator[Sample]:
    for dtype, k, ordered in itertools.product(NUMBERS, (0, 1, 3), (True,)):
        for x in (drawn((4, 6), dtype), drawn((5,), dtype), special(dtype)[3:]):
            yield Sample(name, {"input": x}, {"k": k, "sorted": ordered})


def _segments(name: str) -> Iterator[Sample]:
    for dtype, ids in itertools.product(NUMBERS, ([0, 2, 0, -1], [3, 3, 3, 3], [4, 0, 1, 2])):
        for shape in ((4,), (4, 3)):
            numbers = np.array(ids, np.int32)
            x = drawn(shape, dtype)
            yield Sample(name, {"data": x, "segment_ids": numbers}, {"num_segments": 5})


def _pools(name: str) -> Iterator[Sample]:
    argument = "input" if name in ("MaxPool", "MaxPool3D", "AvgPool3D") else "value"
    deep = name.endswith("3D")
    shape = (2, 4, 7, 6, 3) if deep else (2, 7, 6, 3)
    for window, stride, padding in itertools.product((1, 2, 3, 4), (1, 2, 3), ("SAME", "VALID")):
        sizes = {
            "ksize": [1, *[window] * (len(shape) - 2), 1],
            "strides": [1, *[stride] * (len(shape) - 2), 1],
        }
        yield Sample(name, {argument: drawn(shape)}, {**sizes, "padding": padding})
    if not deep:
        sizes = {"ksize": [1, 3, 2, 1], "strides": [1, 1, 2, 1]}
        x = -np.abs(drawn(shape)) - 1
        yield Sample(name, {argument: x}, {**sizes, "padding": "SAME"})
        if name == "MaxPool":
            others = {**sizes, "padding": "EXPLICIT"}
            others["explicit_paddings"] = [0, 0, 1, 0, 0, 1, 0, 0]
            yield Sample(name, {argument: x}, others)
            sizes = {"ksize": [1, 1, 1, 3], "strides": [1, 1, 1, 3]}
            yield Sample(name, {argument: x}, {**sizes, "padding": "VALID"})


def _convolutions(name: str) -> Iterator[Sample]:
    for kernel, stride, dilation, padding in itertools.product(
        ((1, 1), (3, 2), (2, 3), (5, 4)), (1, 2, 3), (1, 2), ("SAME", "VALID", "EXPLICIT")
    ):
        if stride > 1 and dilation > 1:
            continue
        others = {
            "strides": [1, stride, stride, 1], "dilations": [1, dilation, dilation, 1],
            "padding": padding,
        }  # fmt: skip
        if padding == "EXPLICIT":
            others["explicit_paddings"] = [0, 0, 1, 2, 0, 3, 0, 0]
        x = drawn((2, 10, 9, 4))
        channels = (4, 2) if name == "DepthwiseConv2dNative" else (4, 3)
        yield Sample(name, {"input": x, "filter": drawn((*kernel, *channels), seed=1)}, others)
        if name == "Conv2D" and padding == "SAME":
            weights = drawn((*kernel, 2, 6), seed=1)  # Groups.
            yield Sample(name, {"input": x, "filter": weights}, others)


def _transposed(name: str) -> Iterator[Sample]:
    for kernel, stride, padding, size in itertools.product(
        ((1, 1), (3, 2), (4, 5)), (1, 2, 3), ("SAME", "VALID"), (6, 7, 9)
    ):
        weights, strides = drawn((*kernel, 3, 4), seed=1), [1, stride, stride, 1]
        x = tf.nn.conv2d(np.zeros((2, size, size, 3), np.float32), weights, stride, padding)
        yield Sample(
            name,
            {"filter": weights, "out_backprop": drawn(tuple(x.shape))},
            {
                "input_sizes": np.array([2, size, size, 3], np.int32), "strides": strides,
                "padding": padding,
            },
        )  # fmt: skip


def _deep_convolutions(name: str) -> Iterator[Sample]:
    for stride, padding in itertools.product((1, 2), ("SAME", "VALID")):
        arrays = {"input": drawn((2, 5, 6, 4, 2)), "filter": drawn((2, 3, 2, 2, 3), seed=1)}
        others = {"strides": [1, stride, 1, stride, 1], "padding": padding}
        yield Sample(name, arrays, others)


def _deep_transposed(name: str) -> Iterator[Sample]:
    for stride, padding in itertools.product((1, 2), ("SAME", "VALID")):
        weights = drawn((2, 3, 2, 2, 3), seed=1)
        strides, size = [1, stride, stride, stride, 1], [2, 6, 7, 5, 2]
        x = tf.nn.conv3d(np.zeros(size, np.float32), weights, strides, padding)
        yield Sample(
            name,
            {"filter": weights, "out_backprop": drawn(tuple(x.shape))},
            {"input_sizes": _ints(*size), "strides": strides, "padding": padding},
        )


def _norms(name: str) -> Iterator[Sample]:
    generator = np.random.default_rng(3)
    arrays = {
        "x": generator.normal(size=(3, 4, 2, 5)).astype(np.float32),
        "scale": generator.normal(size=5).astype(np.float32),
        "offset": generator.normal(size=5).astype(np.float32),
    }
    for training in (True, False):
        mean, variance = np.zeros(5, np.float32), np.ones(5, np.float32) * 2
        if training:
            mean, variance = mean[:0], variance[:0]
        yield Sample(
            name,
            {**arrays, "mean": mean, "variance": variance},
            {"is_training": training, "epsilon": 0.01},
        )


def _casts(name: str) -> Iterator[Sample]:
    kinds = [*NUMBERS, np.bool_]
    for source, target in itertools.product(kinds, kinds):
        x = drawn((3, 4), source) if source is np.bool_ else special(source)
        if np.issubdtype(source, np.floating) and not np.issubdtype(target, np.floating):
            x = x[np.isfinite(x)]  # Undefined, and another number on each processor.
            x = np.abs(x) if np.issubdtype(target, np.unsignedinteger) else x
        if target is np.uint8 or (source is np.uint8 and target is np.int8):
            x = np.abs(x)
        yield Sample(name, {"x": x}, {"DstT": tf.as_dtype(target)})


def _selects(name: str) -> Iterator[Sample]:
    first = "condition"
    one, other = ("t", "e")
    for dtype in (*NUMBERS, np.bool_):
        x, y = drawn((3, 4), dtype), drawn((3, 4), dtype, 1)
        yield Sample(name, {first: drawn((3, 4), np.bool_, 2), one: x, other: y}, {})
        if name == "Select":
            yield Sample(name, {first: drawn((3,), np.bool_, 2), one: x, other: y}, {})
        else:
            yield Sample(name, {first: drawn((3, 1), np.bool_, 2), one: x, other: y[0]}, {})


def _slices(name: str) -> Iterator[Sample]:
    x = drawn((4, 5, 6), np.int32)
    ends = (-7, -2, 0, 1, 3, 9)
    for begin, end, stride in itertools.product(ends, ends, (1, 2, -1, -2)):
        for masks in ({}, {"begin_mask": 1}, {"end_mask": 1}, {"shrink_axis_mask": 1}):
            others = {"begin": np.array([begin]), "end": np.array([end])}
            yield Sample(name, {"input": x}, {**others, "strides": np.array([stride]), **masks})
    for masks in (
        {"ellipsis_mask": 1}, {"ellipsis_mask": 2}, {"new_axis_mask": 1}, {"new_axis_mask": 2},
        {"ellipsis_mask": 1, "new_axis_mask": 2}, {"new_axis_mask": 1, "shrink_axis_mask": 2},
    ):  # fmt: skip
        others = {"begin": np.array([1, 2]), "end": np.array([2, 4]), "strides": np.array([1, 1])}
        yield Sample(name, {"input": x}, {**others, **masks})


def _pads(name: str) -> Iterator[Sample]:
    for dtype in (np.float32, np.int32, np.int64, np.uint8, np.bool_):
        for paddings in ([[0, 0], [0, 0]], [[1, 2], [0, 3]], [[2, 0], [1, 1]]):
            others: dict[str, Any] = {"paddings": np.array(paddings, np.int32)}
            arrays = {"input": drawn((3, 4), dtype)}
            if name == "PadV2":
                others["constant_values"] = np.array(3, dtype)
            if name != "MirrorPad":
                yield Sample(name, arrays, others)
                continue
            for mode in ("REFLECT", "SYMMETRIC"):
                yield Sample(name, arrays, {**others, "mode": mode})


def _gathers(name: str) -> Iterator[Sample]:
    x = drawn((3, 4, 5))
    for axis, batch, indices in (
        (0, 0, [[2, 0], [1, 1]]), (1, 0, [3, 0]), (-1, 0, 2), (1, 1, [[3, 0], [1, 1], [0, 2]]),
        (2, 1, [[3, 0], [1, 4], [0, 2]]), (2, 2, drawn((3, 4, 2), np.int32) % 5), (0, 0, []),
        (-1, -1, [[3, 0], [1, 1], [0, 2]]),
    ):  # fmt: skip
        for kind in (np.int32, np.int64):
            yield Sample(
                name,
                {"params": x, "indices": np.array(indices, kind)},
                {"axis": axis, "batch_dims": batch},
            )


def _gathers_nd(name: str) -> Iterator[Sample]:
    for indices in ([[2], [0]], [[2, 3], [0, 1]], [[[2, 3, 4]], [[0, 1, 0]]], [2, 1]):
        numbers = np.array(indices, np.int32)
        yield Sample(name, {"params": drawn((3, 4, 5)), "indices": numbers}, {})


def _scatters(name: str) -> Iterator[Sample]:
    for dtype in (np.float32, np.int32, np.int64):
        for indices, shape in (([[2], [0], [2]], (3, 5)), ([[2, 3], [0, 1], [1, 1]], (3,))):
            arrays = {"indices": np.array(indices, np.int32), "updates": drawn(shape, dtype, 1)}
            if name == "ScatterNd":
                yield Sample(name, arrays, {"shape": np.array([4, 5], np.int32)})
            elif name != "TensorScatterUpdate" or len(indices[0]) == 2:
                yield Sample(name, {"tensor": drawn((4, 5), dtype), **arrays}, {})


def _one_hots(name: str) -> Iterator[Sample]:
    for kind, axis, value in itertools.product(
        (np.int32, np.int64, np.uint8), (-1, 0, 1, 2), (0, 1)
    ):
        others = {"depth": 3, "on_value": np.float32(2 + value), "off_value": np.float32(-1)}
        indices = np.array([[0, 2, 3], [1, 9, 0]], kind)
        yield Sample(name, {"indices": indices}, {**others, "axis": axis})
    yield Sample(
        name,
        {"indices": np.array([-1, 0, 2], np.int32)},
        {"depth": 3, "on_value": np.int32(1), "off_value": np.int32(0)},
    )


def _shaped(name: str) -> Iterator[Sample]:
    """Operators that move elements, each by its own arguments."""
    for dtype in (np.float32, np.int32, np.bool_):
        x, y = drawn((2, 3, 4), dtype), drawn((2, 1, 4), dtype, 1)
        for arrays, others in _MOVES[name](x, y):
            yield Sample(name, arrays, others)


def _ints(*values: Any) -> np.ndarray:
    return np.array(values, np.int32)


_MOVES: dict[str, Callable[[Any, Any], list[Any]]] = {
    "BroadcastTo": lambda x, y: [
        ({"input": y}, {"shape": _ints(*shape)}) for shape in ((2, 3, 4), (5, 2, 1, 4))
    ],
    "ConcatV2": lambda x, y: [({"values": [x, y, x]}, {"axis": axis}) for axis in (1, -2)],
    "EnsureShape": lambda x, y: [({"input": x}, {"shape": [2, None, 4]})],
    "ExpandDims": lambda x, y: [({"input": x}, {"axis": axis}) for axis in (0, 2, 3, -1, -4)],
    "Fill": lambda x, y: [
        ({"value": x[0, 0, 0]}, {"dims": _ints(*s)}) for s in ((), (0,), (2, 3))
    ],
    "Pack": lambda x, y: [({"values": [x, x + x]}, {"axis": axis}) for axis in (0, 1, -1, -4)],
    "Unpack": lambda x, y: [
        ({"value": x}, {"axis": axis, "num": x.shape[axis]}) for axis in (0, 1, -1)
    ],
    "Reshape": lambda x, y: [
        ({"tensor": x}, {"shape": _ints(*shape)})
        for shape in ((-1,), (4, -1), (2, 12), (1, 24, 1))
    ],
    "ReverseV2": lambda x, y: [
        ({"tensor": x}, {"axis": _ints(*axes)}) for axes in ((), (0,), (-1, 1), (0, 1, 2))
    ],
    "Roll": lambda x, y: [
        ({"input": x}, {"shift": _ints(*s), "axis": _ints(*a)})
        for s, a in (((1,), (0,)), ((-5,), (2,)), ((1, 2), (1, 1)), ((3, -1), (0, 2)))
    ],
    "Slice": lambda x, y: [
        ({"input": x}, {"begin": _ints(*b), "size": _ints(*s)})
        for b, s in (((0, 1, 2), (-1, 2, 1)), ((1, 0, 4), (1, 0, -1)))
    ],
    "Split": lambda x, y: [
        ({"value": x}, {"axis": a, "num_split": n}) for a, n in ((0, 2), (1, 3), (-1, 2), (2, 1))
    ],
    "SplitV": lambda x, y: [
        ({"value": x}, {"size_splits": _ints(*s), "axis": -1, "num_split": len(s)})
        for s in ((1, 3), (0, 4), (1, -1, 2))
    ],
    "Squeeze": lambda x, y: [
        ({"input": y}, {"axis": axes}) for axes in ([], [1], [-2])
    ],
    "Tile": lambda x, y: [
        ({"input": x}, {"multiples": _ints(*m)}) for m in ((1, 2, 3), (0, 1, 1), (2, 1, 1))
    ],
    "Transpose": lambda x, y: [
        ({"x": x}, {"perm": _ints(*p)}) for p in ((2, 0, 1), (0, 1, 2), (1, 0, 2))
    ],
    "Diag": lambda x, y: [({"diagonal": x[0, 0]}, {}), ({"diagonal": x[:, :, 0]}, {})],
    "MatrixBandPart": lambda x, y: [
        ({"input": x}, {"num_lower": a, "num_upper": b})
        for a, b in ((0, 0), (-1, 0), (0, -1), (1, 1), (-1, -1), (1, 2))
    ],
    "MatrixDiagPartV3": lambda x, y: [
        ({"input": x}, {"k": np.int32(k), "padding_value": np.zeros((), x.dtype)})
        for k in (0, 1, -1, 3)
    ],
    "MatrixDiagV3": lambda x, y: [
        (
            {"diagonal": x},
            {
                "k": np.int32(k), "num_rows": -1, "num_cols": -1,
                "padding_value": np.zeros((), x.dtype),
            },
        )
        for k in (0, 1, -2)
    ],
    "ReverseSequence": lambda x, y: [
        (
            {"input": x, "seq_lengths": _ints(*lengths)},
            {"seq_dim": seq, "batch_dim": batch},
        )
        for seq, batch, lengths in ((1, 0, (2, 3)), (2, 1, (0, 1, 4)), (0, 2, (1, 2, 2, 1)))
    ],
    "SpaceToBatchND": lambda x, y: [
        ({"input": x}, {"block_shape": _ints(*b), "paddings": np.array(p, np.int32)})
        for b, p in (((3,), [[0, 0]]), ((3, 2), [[0, 0], [0, 0]]), ((2, 2), [[1, 0], [1, 1]]))
    ],
    "BatchToSpaceND": lambda x, y: [
        ({"input": x}, {"block_shape": _ints(*b), "crops": np.array(p, np.int32)})
        for b, p in (((2,), [[0, 0]]), ((2, 1), [[1, 0], [0, 2]]))
    ],
}  # fmt: skip


def _products(name: str) -> Iterator[Sample]:
    names = ("transpose_a", "transpose_b") if name == "MatMul" else ("adj_x", "adj_y")
    first, second = ("a", "b") if name == "MatMul" else ("x", "y")
    lead = () if name == "MatMul" else (2,)
    for one, other in itertools.product((False, True), (False, True)):
        x = drawn((*lead, 4, 3) if one else (*lead, 3, 4))
        y = drawn((*lead, 5, 4) if other else (*lead, 4, 5), seed=1)
        yield Sample(name, {first: x, second: y}, {names[0]: one, names[1]: other})
        x, y = x.astype(np.int32), y.astype(np.int32)
        yield Sample(name, {first: x, second: y}, {names[0]: one, names[1]: other})
    if lead:
        yield Sample(name, {first: drawn((3, 1, 2, 4)), second: drawn((2, 4, 3))}, {})


def _matrices(name: str) -> Iterator[Sample]:
    generator = np.random.default_rng(4)
    a = generator.normal(size=(2, 4, 4)).astype(np.float32) + 4 * np.eye(4, dtype=np.float32)
    b = generator.normal(size=(2, 4, 3)).astype(np.float32)
    if name == "Cholesky":
        yield Sample(name, {"input": a @ a.swapaxes(1, 2)}, {})
    elif name == "MatrixDeterminant":
        yield Sample(name, {"input": a}, {})
    elif name == "MatrixInverse":
        for adjoint in (False, True):
            yield Sample(name, {"input": a}, {"adjoint": adjoint})
    else:
        for adjoint, lower in itertools.product((False, True), (False, True)):
            others = {"adjoint": adjoint}
            if name == "MatrixTriangularSolve":
                others["lower"] = lower
            yield Sample(name, {"matrix": a, "rhs": b}, others)


def _entropies(name: str) -> Iterator[Sample]:
    logits = np.array([[1, 2, 3], [-50, 50, 0], [0, 0, 0], [1, -1, 2]], np.float32)
    if name == "SparseSoftmaxCrossEntropyWithLogits":
        for kind in (np.int32, np.int64):
            yield Sample(name, {"features": logits, "labels": np.array([0, 2, 1, 1], kind)}, {})
        return
    labels = np.array([[0, 0, 1], [0.2, 0.3, 0.5], [0, 0, 0], [1, 1, 0]], np.float32)
    yield Sample(name, {"features": logits, "labels": labels}, {})


def _softmaxes(name: str) -> Iterator[Sample]:
    for x in (drawn((2, 3, 4)), np.array([[1e4, -1e4, 0], [-np.inf, 0, 1]], np.float32)):
        yield Sample(name, {"logits": x}, {})
    yield Sample(name, {"logits": drawn((3, 4), np.float16)}, {})


def _images(name: str) -> Iterator[Sample]:
    for shape, size in itertools.product(((2, 4, 5, 3), (1, 7, 3, 1)), ((4, 5), (9, 2), (2, 8))):
        for half in (True, False):
            yield Sample(
                name, {"images": drawn(shape)},
                {"size": _ints(*size), "half_pixel_centers": half, "align_corners": False},
            )  # fmt: skip


def _spaces(name: str) -> Iterator[Sample]:
    for size in (2, 3):
        yield Sample(name, {"input": drawn((2, 6, 12, 36))}, {"block_size": size})


def _patches(name: str) -> Iterator[Sample]:
    for window, stride, padding in itertools.product((2, 3), (1, 2), ("VALID", "SAME")):
        yield Sample(
            name, {"images": drawn((2, 7, 6, 3))},
            {
                "ksizes": [1, window, 3, 1], "strides": [1, stride, 2, 1], "rates": [1, 1, 1, 1],
                "padding": padding,
            },
        )  # fmt: skip


def _searches(name: str) -> Iterator[Sample]:
    rows = np.sort(drawn((2, 6)), axis=1)
    for kind in (tf.int32, tf.int64):
        arrays = {"sorted_inputs": rows, "values": drawn((2, 4), seed=1)}
        yield Sample(name, arrays, {"out_type": kind})


def _biases(name: str) -> Iterator[Sample]:
    for shape in ((2, 3), (2, 4, 3), (2, 5, 4, 3)):
        yield Sample(name, {"value": drawn(shape), "bias": drawn((3,))}, {})
    yield Sample(name, {"value": drawn((2, 3, 4, 5)), "bias": drawn((3,))}, {"data_format": "NCHW"})


def _einsums(name: str) -> Iterator[Sample]:
    for equation, shapes in (
        ("ij,jk->ik", [(2, 3), (3, 4)]), ("bij,bjk->bik", [(2, 3, 4), (2, 4, 2)]),
        ("ij->ji", [(2, 3)]), ("ii->i", [(3, 3)]), ("ij,ij->", [(2, 3), (2, 3)]),
        ("...ij,jk->...ik", [(2, 2, 3), (3, 4)]), ("i,j->ij", [(2,), (3,)]),
    ):  # fmt: skip
        arrays = [drawn(shape, seed=number) for number, shape in enumerate(shapes)]
        yield Sample(name, {"inputs": arrays}, {"equation": equation})


def _clips(name: str) -> Iterator[Sample]:
    for dtype in (*FLOATS, np.int32):
        low, high = np.array(-1, dtype), np.array(2, dtype)
        arrays = {"t": special(dtype), "clip_value_min": low, "clip_value_max": high}
        yield Sample(name, arrays, {})


def _top_checks(name: str) -> Iterator[Sample]:
    scores = np.array(
        [[1, 2, 2, 0], [3, 3, 3, 3], [np.nan, 1, 2, 3], [np.inf, 0, 1, 2]], np.float32
    )
    for k in (1, 2, 3):
        arrays = {"predictions": scores, "targets": _ints(1, 3, 1, 0)}
        yield Sample(name, arrays, {"k": k})


def _contrasts(name: str) -> Iterator[Sample]:
    yield Sample(name, {"images": drawn((2, 4, 5, 3))}, {"contrast_factor": np.float32(1.5)})


def _sums(name: str) -> Iterator[Sample]:
    for dtype in NUMBERS:
        yield Sample(name, {"inputs": [drawn((2, 3), dtype, seed) for seed in range(3)]}, {})


def _leaky(name: str) -> Iterator[Sample]:
    for alpha, dtype in itertools.product((0.2, 0.0, 1.5, -0.5), FLOATS):
        yield Sample(name, {"features": special(dtype)}, {"alpha": alpha})


def _definition(name: str) -> Any:
    from tensorflow.python.framework import op_def_registry

    return op_def_registry.get(name)


def _plain(name: str) -> Callable[[str], Iterator[Sample]] | None:
    """Returns samples for an operator of one or two tensors of one type, by its definition."""
    definition = _definition(name)
    inputs = definition.input_arg
    if len(inputs) not in (1, 2) or any(each.number_attr or each.type_list_attr for each in inputs):
        return None
    kinds = _types(definition, inputs[0])
    return (_unary if len(inputs) == 1 else _binary)(kinds)


def _types(definition: Any, argument: Any) -> list[Any]:
    """Returns those types of an argument that a device has."""
    allowed = [argument.type] if argument.type else None
    for attr in definition.attr:
        if attr.name == argument.type_attr and attr.HasField("allowed_values"):
            allowed = list(attr.allowed_values.list.type)
    kinds = [*NUMBERS, np.bool_]
    return [
        each for each in kinds if allowed is None or tf.as_dtype(each).as_datatype_enum in allowed
    ]


_SPECIFIC: dict[str, Callable[[str], Iterator[Sample]]] = {
    **dict.fromkeys(("All", "Any"), _reduced((np.bool_,))),
    **dict.fromkeys(("Max", "Min", "Mean", "Prod", "Sum"), _reduced(NUMBERS)),
    "EuclideanNorm": _reduced(FLOATS),
    **dict.fromkeys(("ArgMax", "ArgMin"), _extremes),
    **dict.fromkeys(("Cumsum", "Cumprod"), _cumulative),
    "TopKV2": _top_k,
    **{f"UnsortedSegment{each}": _segments for each in ("Max", "Min", "Prod", "Sum")},
    **dict.fromkeys(("MaxPool", "AvgPool", "MaxPool3D", "AvgPool3D"), _pools),
    **dict.fromkeys(("Conv2D", "DepthwiseConv2dNative"), _convolutions),
    "Conv2DBackpropInput": _transposed,
    "FusedBatchNormV3": _norms,
    "Cast": _casts,
    **dict.fromkeys(("Select", "SelectV2"), _selects),
    "StridedSlice": _slices,
    **dict.fromkeys(("Pad", "PadV2", "MirrorPad"), _pads),
    "GatherV2": _gathers,
    "GatherNd": _gathers_nd,
    **dict.fromkeys(
        ("ScatterNd", *(f"TensorScatter{each}" for each in ("Add", "Max", "Min", "Sub", "Update"))),
        _scatters,
    ),
    "OneHot": _one_hots,
    **dict.fromkeys(_MOVES, _shaped),
    **dict.fromkeys(("MatMul", "BatchMatMulV2", "BatchMatMulV3"), _products),
    **dict.fromkeys(
        ("Cholesky", "MatrixDeterminant", "MatrixInverse", "MatrixSolve", "MatrixTriangularSolve"),
        _matrices,
    ),
    **dict.fromkeys(
        ("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"), _entropies
    ),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmaxes),
    **dict.fromkeys(("ResizeBilinear", "ResizeNearestNeighbor"), _images),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _spaces),
    "ExtractImagePatches": _patches,
    **dict.fromkeys(("LowerBound", "UpperBound"), _searches),
    "BiasAdd": _biases,
    "Conv3D": _deep_convolutions,
    "Conv3DBackpropInputV2": _deep_transposed,
    "Einsum": _einsums,
    "ClipByValue": _clips,
    "InTopKV2": _top_checks,
    "AdjustContrastv2": _contrasts,
    "AddN": _sums,
    "LeakyRelu": _leaky,
    "Round": _unary(FLOATS),  # tf.round returns integers as they are.
}


def samples_of(name: str) -> list[Sample]:
    """Returns the samples of an operator; none if its arguments are not known here."""
    make = _SPECIFIC.get(name) or _plain(name)
    return [] if make is None else list(make(name))
