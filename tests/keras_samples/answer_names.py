"""Expressions that call Keras's public functions, with arguments that follow from signatures."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

_generator = np.random.default_rng(5)


def _floats(*shape: int) -> np.ndarray:
    return _generator.normal(size=shape).astype(np.float32)


def _rows(values: np.ndarray) -> np.ndarray:
    return (values / values.sum(-1, keepdims=True)).astype(np.float32)


# The names of tensors in expressions: each is bound to an array, a tensor, a variable or a list.
ARRAYS: dict[str, np.ndarray] = {
    "f34": _floats(3, 4), "g34": _floats(3, 4), "f43": _floats(4, 3), "f4": _floats(4),
    "g4": _floats(4), "s": np.float32(0.3) * np.ones((), np.float32),
    "n": np.full((), 2, np.int32), "i34": np.arange(12, dtype=np.int32).reshape(3, 4) % 4,
    "j34": np.arange(12, dtype=np.int32).reshape(3, 4) % 3 + 1,
    "i4": np.array([0, 1, 1, 2], np.int32), "i3": np.array([2, 0, 1], np.int32),
    "k34": np.arange(12).reshape(3, 4) % 5 < 2,
    "u34": np.linspace(0.1, 0.9, 12, dtype=np.float32).reshape(3, 4),
    "p34": _rows(np.linspace(0.1, 0.9, 12, dtype=np.float32).reshape(3, 4)),
    "t34": np.eye(4, dtype=np.float32)[[2, 0, 1]],
    "m44": (np.eye(4) * 4 + np.ones((4, 4))).astype(np.float32),
    "img": _floats(2, 6, 6, 4), "seq": _floats(2, 8, 4), "q2": _floats(2, 3, 2, 4),
    "k2": _floats(2, 2, 4, 4), "d2": _floats(2, 2, 4, 1), "w1": _floats(1, 1, 4, 3),
    "z32": _floats(3, 2), "sorted4": np.array([-1, 0, 0.5, 2], np.float32),
}  # fmt: skip
_LOGITS = "np.eye(5, dtype='float32')[[[0, 1, 2, 3, 4, 0]]] * 3"

# Kinds of first and second tensors of a call.
_KINDS = (("f34", "g34"), ("i34", "j34"), ("m44", "m44"), ("k34", "k34"), ("f4", "g4"),
          ("img", "img"), ("seq", "seq"), ("u34", "u34"), ("i34", "f34"))  # fmt: skip
_TENSORS = {
    "a", "array", "b", "data", "elements", "inputs", "output", "target", "tensor", "values",
    "variable", "x", "x1", "x2", "y", "y_pred", "y_true", "elems", "abs_", "angle", "logits",
}  # fmt: skip
_FIXED = {
    "shape": "(3, 4)", "dtype": "'int32'", "axis": "0", "axes": "[0]", "k": "2", "num_classes": "4",
    "N": "3", "n": "3", "start": "1", "stop": "5", "num": "3", "fill_value": "2.5", "q": "0.5",
    "x_min": "-0.5", "x_max": "0.5", "pool_size": "2", "block_size": "2", "newshape": "(4, 3)",
    "repeats": "2", "shift": "1", "source": "0", "destination": "1", "axis1": "0", "axis2": "1",
    "pad_width": "1", "threshold": "0.1", "default_value": "2.0", "kth": "1", "beta": "2.0",
    "sequence_length": "4", "sequence_stride": "2", "fft_length": "4", "kernel_size": "2",
    "output_size": "2", "indices_or_sections": "2", "max_val": "1.0", "bins": "4",
    "alpha": "2.0", "minval": "0", "maxval": "5", "counts": "5.0", "probabilities": "0.5",
    "num_samples": "2", "rate": "0.5", "mean": "0.0",
}  # fmt: skip
OPS = "keras.ops."

# Functions whose arguments do not follow from names; "" leaves a function out.
TABLE: dict[str, tuple[str, ...]] = {
    "associative_scan": ("keras.ops.associative_scan(spy(keras.ops.add), f34)",),
    "batch_normalization": ("keras.ops.batch_normalization(f34, g4, f4 * f4 + 1.0, -1)",
                            "keras.ops.batch_normalization(f34, f4, np.ones(4, 'float32'), -1)"),
    "bincount": ("keras.ops.bincount(i4)", "keras.ops.bincount(i34, minlength=5)"),
    "bitwise_left_shift": ("keras.ops.bitwise_left_shift(i34, j34)",),
    "broadcast_to": ("keras.ops.broadcast_to(f4, (3, 4))",),
    "cdist": ("keras.ops.cdist(f34, g34)",),
    "concatenate": ("keras.ops.concatenate([f34, g34])", "keras.ops.concatenate([f34, i34], 1)",
                    "keras.ops.concatenate((i34, j34), axis=-1)"),
    "cond": ("keras.ops.cond(s > 0, spy(lambda: f34 * 2), spy(lambda: f34))",
             "keras.ops.cond(True, lambda: keras.ops.relu(f34), lambda: f34)"),
    "conv": ("keras.ops.conv(img, k2)",),
    "conv_transpose": ("keras.ops.conv_transpose(img, k2)",),
    "cross": ("keras.ops.cross(f43, f43)",),
    "ctc_decode": (f"keras.ops.ctc_decode({_LOGITS}, [6])",),
    "ctc_loss": (f"keras.ops.ctc_loss([[1, 2, 3]], {_LOGITS}, [3], [6])",),
    "custom_gradient": ("keras.ops.custom_gradient(lambda x: (spy(keras.ops.square)(x), "
                        "lambda *a, upstream=None: upstream))(f34)",),
    "depthwise_conv": ("keras.ops.depthwise_conv(img, d2)",),
    "separable_conv": ("keras.ops.separable_conv(img, d2, w1)",),
    "digitize": ("keras.ops.digitize(f34, [-1.0, 0.0, 0.5])",),
    "dot_product_attention": ("keras.ops.dot_product_attention(q2, q2, q2)",),
    "dsplit": ("keras.ops.dsplit(seq, 2)",),
    "dtype": ("keras.ops.dtype(f34)", "keras.ops.dtype(i34)"),
    "dstack": ("keras.ops.dstack([f34, g34])",),
    "einsum": ("keras.ops.einsum('ij,kj->ik', f34, g34)", "keras.ops.einsum('ij->j', i34)"),
    "eig": ("",),
    "fold": ("keras.ops.fold(keras.ops.unfold(img, 2), 6, 2)",
             "keras.ops.fold(np.ones((1, 8, 4), 'float32'), 3, 2)"),
    "fori_loop": ("keras.ops.fori_loop(0, 3, spy(lambda i, x: x * 2.0), f34)",),
    "get_item": ("keras.ops.get_item(f34, 1)", "keras.ops.get_item(f34, (slice(0, 2), -1))"),
    "hstack": ("keras.ops.hstack([f34, g34])",),
    "hsplit": ("keras.ops.hsplit(f34, 2)",), "vsplit": ("keras.ops.vsplit(m44, 2)",),
    "ifft2": ("keras.ops.ifft2((f34, g34))",), "fft": ("keras.ops.fft((f34, g34))",),
    "fft2": ("keras.ops.fft2((f34, g34))",), "rfft": ("keras.ops.rfft(f34)",),
    "irfft": ("keras.ops.irfft((f34, g34))",),
    "stft": ("keras.ops.stft(f34, 4, 2, 4)", "keras.ops.stft(seq[:, :, 0], 4, 2, 4)"),
    "istft": ("keras.ops.istft((seq, seq), 6, 3, 6)",
              "keras.ops.istft(keras.ops.stft(seq[:, :, 0], 4, 2, 4), 4, 2, 4)"),
    "in_top_k": ("keras.ops.in_top_k(i3, f34, 2)",),
    "inv": ("keras.ops.inv(m44)",), "solve": ("keras.ops.solve(m44, f43)",),
    "cholesky": ("keras.ops.cholesky(m44)",), "lstsq": ("keras.ops.lstsq(m44, f43)",),
    "solve_triangular": ("keras.ops.solve_triangular(keras.ops.cholesky(m44), f43, lower=True)",),
    "jvp": ("keras.ops.jvp(spy(keras.ops.square), (f34,), (g34,))",),
    "layer_normalization": ("keras.ops.layer_normalization(f34)",
                            "keras.ops.layer_normalization(f34, f4, g4)"),
    "linspace": ("keras.ops.linspace(0, 5, 4)", "keras.ops.linspace(f4, g4, 3)",
                 "keras.ops.linspace(0.0, 1.0, 3, retstep=True)"),
    "map": ("keras.ops.map(spy(lambda x: x * 2), f34)",
            "keras.ops.map(spy(keras.ops.sum), f34)"),
    "meshgrid": ("keras.ops.meshgrid(f4, g4)",),
    "moments": ("keras.ops.moments(f34, [0])", "keras.ops.moments(f34, axes=[0], keepdims=True)"),
    "moveaxis": ("keras.ops.moveaxis(f34, 0, 1)",),
    "multi_hot": ("keras.ops.multi_hot(i34, 4)",), "one_hot": ("keras.ops.one_hot(i34, 4)",),
    "pad": ("keras.ops.pad(f34, ((1, 0), (0, 2)))",),
    "rearrange": ("keras.ops.rearrange(f34, 'a b -> b a')",),
    "ravel": ("keras.ops.ravel(f34)",),
    "reshape": ("keras.ops.reshape(f34, (4, 3))", "keras.ops.reshape(i34, [-1])"),
    "scan": ("keras.ops.scan(spy(lambda c, x: (c + x, c * x)), f4, f34)",
             "keras.ops.scan(lambda c, x: (c + x, c), g4, xs=f34)"),
    "scatter": ("keras.ops.scatter([[0], [2]], g34[:2], (4, 4))",
                "keras.ops.scatter(np.array([[0], [2]]), np.ones((2, 4), 'float32'), (4, 4))"),
    "scatter_update": ("keras.ops.scatter_update(f34, [[0, 1], [2, 3]], [1.0, 2.0])",),
    "searchsorted": ("keras.ops.searchsorted(sorted4, f4)",),
    "select": ("keras.ops.select([k34, f34 > 0], [f34, g34], 0)",
               "keras.ops.select([k34], [f34])"),
    "slice": ("keras.ops.slice(f34, (0, 1), (2, 2))",),
    "slice_update": ("keras.ops.slice_update(f34, (0, 1), np.ones((2, 2), 'float32'))",),
    "segment_max": ("keras.ops.segment_max(f4, i4, 3)",),
    "segment_min": ("keras.ops.segment_min(f4, i4, 3)",),
    "segment_prod": ("keras.ops.segment_prod(f4, i4, 3)",),
    "segment_sum": ("keras.ops.segment_sum(f4, i4, 3)", "keras.ops.segment_sum(f43, i4)"),
    "shape": ("keras.ops.shape(f34)",),
    "sparse_categorical_crossentropy": ("keras.ops.sparse_categorical_crossentropy(i3, p34)",),
    "categorical_crossentropy": ("keras.ops.categorical_crossentropy(t34, p34)",),
    "binary_crossentropy": ("keras.ops.binary_crossentropy(t34, u34)",),
    "split": ("keras.ops.split(f34, 2, axis=1)", "keras.ops.split(i34, [1], axis=0)"),
    "array_split": ("keras.ops.array_split(f34, 2)",),
    "stack": ("keras.ops.stack([f34, g34])", "keras.ops.stack((i34, f34), axis=-1)"),
    "svd": ("keras.ops.svd(m44, compute_uv=False)", "keras.ops.svd(m44)"),
    "switch": ("keras.ops.switch(1, [lambda x: x, spy(lambda x: x * 2)], f34)",),
    "take": ("keras.ops.take(f34, i3)", "keras.ops.take(f34, [0, 1], axis=1)",
             "keras.ops.take(f34, 1, axis=0)"),
    "take_along_axis": ("keras.ops.take_along_axis(f34, i34[:, :2], axis=1)",
                        "keras.ops.take_along_axis(f34, [[0, 1]] * 3, axis=1)"),
    "tensordot": ("keras.ops.tensordot(f34, f43, 1)",),
    "top_k": ("keras.ops.top_k(f34, 2)", "keras.ops.top_k(i34, 2).indices"),
    "unravel_index": ("keras.ops.unravel_index(i4, (3, 4))",),
    "unstack": ("keras.ops.unstack(f34)", "keras.ops.unstack(f34, axis=1)"),
    "vander": ("keras.ops.vander(f4)",),
    "vectorize": ("keras.ops.vectorize(spy(lambda x: x * 2))(f34)",
                  "keras.ops.vectorize(keras.ops.sum, signature='(d)->()')(f34)"),
    "vectorized_map": ("keras.ops.vectorized_map(spy(lambda x: x * 2), f34)",
                       "keras.ops.vectorized_map(spy(keras.ops.sum), f34)"),
    "view": ("keras.ops.view(f34, 'int32')",),
    "view_as_complex": ("keras.ops.view_as_complex(z32)",),
    "view_as_real": ("keras.ops.view_as_real(keras.ops.view_as_complex(z32))",),
    "conjugate": ("keras.ops.conjugate(keras.ops.view_as_complex(z32))",),
    "vstack": ("keras.ops.vstack([f34, g34])",),
    "where": ("keras.ops.where(k34, f34, g34)", "keras.ops.where(f34 > 0, f34, 0.0)",
              "keras.ops.where(k34, 1, 0)", "keras.ops.where(k34)"),
    "while_loop": ("keras.ops.while_loop(lambda i, x: i < 3, spy(lambda i, x: (i + 1, x * 2.0)), "
                   "(0, f34))", "keras.ops.while_loop(spy(lambda x: keras.ops.sum(x) < 9), "
                   "lambda x: [x + 1.0], [f4])"),
    "saturate_cast": ("keras.ops.saturate_cast(f34, 'uint8')",),
    "cast": ("keras.ops.cast(f34, 'int32')", "keras.ops.cast(i34, 'float32')",
             "keras.ops.cast(f34, 'float16')", "keras.ops.cast(f34, 'bool')"),
    "convert_to_tensor": ("keras.ops.convert_to_tensor(f34)", "keras.ops.convert_to_tensor(i34)",
                          "keras.ops.convert_to_tensor(1.0)", "keras.ops.convert_to_tensor(3)",
                          "keras.ops.convert_to_tensor(i34, dtype='float32')",
                          "keras.ops.convert_to_tensor([f4, g4])"),
    "empty": ("keras.ops.empty((3, 4))",), "empty_like": ("keras.ops.empty_like(f34)",),
    "arange": ("keras.ops.arange(5)", "keras.ops.arange(0.0, 2.0, 0.5)",
               "keras.ops.arange(3, dtype='float32')"),
    "zeros": ("keras.ops.zeros((3, 4))", "keras.ops.zeros((2,), dtype='int32')"),
    "ones": ("keras.ops.ones([3])", "keras.ops.ones((2, 2), 'bool')"),
    "full": ("keras.ops.full((2, 3), 2)", "keras.ops.full((2, 3), 2.5, 'float32')"),
}  # fmt: skip
_NOT_CALLS = ("deserialize", "serialize", "get")


def functions() -> dict[str, Callable[..., Any]]:
    """Returns the public functions of Keras, by their full names."""
    found = {}
    for room in ("ops", "activations", "losses", "metrics", "random"):
        module = getattr(keras, room)
        for name in sorted(dir(module)):
            value = getattr(module, name)
            is_plain = callable(value) and not inspect.isclass(value) and not name.startswith("_")
            if is_plain and name not in _NOT_CALLS:
                found[f"keras.{room}.{name}"] = value
    return found


def candidates(name: str, function: Callable[..., Any]) -> Iterator[str]:
    """Yields expressions of which the first ones that TensorFlow accepts are taken."""
    short = name.rpartition(".")[2]
    needed = _needed(function)
    if name.startswith(OPS) and short in TABLE:
        return
    if "y_true" in needed:
        rest = "".join(f", {_FIXED.get(each, '2')}" for each in needed[2:])
        yield from (f"{name}({pair}{rest})" for pair in ("i3, p34", "t34, p34", "f34, g34"))
        return
    for kind in _KINDS if set(needed) & _TENSORS else _KINDS[:1]:
        tensors = itertools.chain(kind, itertools.repeat(kind[-1]))
        given = [next(tensors) if x in _TENSORS else _FIXED.get(x, "2") for x in needed]
        yield f"{name}({', '.join(given)})"


def variations(name: str, function: Callable[..., Any]) -> Iterator[str]:
    """Yields expressions of which all are taken."""
    short = name.rpartition(".")[2]
    needed = _needed(function)
    if name.startswith(OPS) and short in TABLE:
        yield from (text for text in TABLE[short] if text)
    elif needed == ["x1", "x2"]:
        for second in ("2", "2.5"):
            yield from (f"{name}({first}, {second})" for first in ("f34", "i34"))
        yield f"{name}(2, f34)"
    elif needed == ["x"] and "axis" in inspect.signature(function).parameters:
        yield from (f"{name}({first}, axis=-1)" for first in ("f34", "i34"))


def _needed(function: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = inspect.signature(function).parameters.values()
    return [x.name for x in parameters if x.default is x.empty and x.kind not in kinds]
