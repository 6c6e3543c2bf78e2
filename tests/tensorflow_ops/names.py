"""Calls public functions of TensorFlow by name, with arguments that follow from their signatures.

`python -m tensorflow_ops.names [NAME ...]` prints each difference; with `--write`, it writes the
table of names in the documentation.
"""

from __future__ import annotations

import inspect
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import numpy as np
import tensorflow as tf
import torch
from tensorflow_ops.calls import ARRAYS, CALLS, OF_HOST
from tensorflow_ops.check import compared, difference_of_gradients
from tensorflow_ops.samples import drawn

from poptorch_emu import Error
from poptorch_emu.keras import ipu
from poptorch_emu.keras.tensorflow.functions.program_functions import on_device

PAGE = Path(__file__).parents[2] / "docs" / "tensorflow_functions.md"
ROOMS = {
    "tf": tf, "tf.nn": tf.nn, "tf.math": tf.math, "tf.linalg": tf.linalg,
    "tf.keras.backend": tf.keras.backend,
}  # fmt: skip
SERVED, REFUSED, HOST, NOT_TRIED = "served", "refused", "of the host", "not tried"

# Parameters that are tensors of the device; all others are known on the host.
_TENSORS = {
    "a", "arrays", "b", "bias", "condition", "data", "diagonal", "features", "filter", "filters",
    "image", "images", "indices", "input", "input_tensor", "inputs", "kernel", "labels", "logits",
    "matrix", "mean", "numerator", "offset", "output", "params", "predictions", "rhs", "scale",
    "segment_ids", "seq_lengths", "sorted_sequence", "t", "target", "targets", "tensor", "updates",
    "value", "values", "variance", "x", "y",
}  # fmt: skip
_FIXED: dict[str, list[Any]] = {
    "axis": [0, -1], "axes": [[1, 0], [0]], "perm": [[1, 0]], "shape": [[4, 3], [2]],
    "dims": [[4, 3]],
    "paddings": [[[1, 0], [0, 2]]], "multiples": [[2, 1]], "depth": [4], "k": [2], "num": [3, 4],
    "num_or_size_splits": [2], "block_size": [2], "begin": [[0, 1]], "size": [[2, 2]],
    "clip_norm": [0.5], "clip_value_min": [-1.0], "clip_value_max": [1.0], "dtype": [tf.int32],
    "num_segments": [5], "rate": [0.5], "ksize": [2], "pool_size": [(2, 2)], "strides": [1, 2],
    "padding": ["SAME", "VALID"], "num_lower": [1], "num_upper": [0], "repeats": [2], "rank": [2],
    "equation": ["ij,kj->ik"], "shift": [1], "ord": [2], "min_value": [-1.0], "max_value": [1.0],
    "n": [2], "pattern": [(1, 0)], "p": [0.0], "eps": [0.1], "num_classes": [4], "alpha": [0.2],
    "block_shape": [[2]], "crops": [[[0, 0]]], "window_shape": [[2, 2]], "pooling_type": ["MAX"],
    "start": [0], "limit": [5], "delta": [2], "dimension": [0], "variance_epsilon": [1e-3],
    "depth_radius": [2], "lengths": [[1, 3]], "maxlen": [4],
}  # fmt: skip
_FORMS: tuple[tuple[Any, Any], ...] = (
    ((3, 4), np.float32), ((4,), np.float32), ((4, 4), np.float32), ((3, 4), np.int32),
    ((3, 4), np.bool_), ((2, 6, 6, 4), np.float32), ((), np.float32), ((4,), np.int32),
    ((2, 8, 4), np.float32), ((3, 4), np.int64),
)  # fmt: skip
# Forms of further tensors, if they do not have the form of the first one.
_INTEGERS = {"indices", "labels", "segment_ids", "targets"}
_FILTERS = {"filter", "filters", "kernel"}
# Functions that draw, keep state, write or call Python, or whose arguments are not tensors.
_LEFT_OUT = (
    "Assert", "Variable", "RegisterGradient", "print_tensor", "py_function", "numpy_function",
    "dropout", "experimental_dropout", "recompute_grad", "clear_session", "set_floatx",
    "random_normal_variable",
    "random_uniform_variable",
    "set_epsilon", "set_image_data_format", "set_learning_phase", "get_uid", "reset_uids",
)  # fmt: skip

# Functions whose gradient is ill-conditioned, or is another one of the same function.
_WITHOUT_GRADIENT = (tf.linalg.lstsq, CALLS["tf.linalg.cholesky"])


def functions() -> dict[str, Callable[..., Any]]:
    """Returns the public functions of the rooms, by their full names."""
    found = {}
    for room, module in ROOMS.items():
        for name in sorted(dir(module)):
            value = getattr(module, name)
            is_plain = callable(value) and not inspect.isclass(value) and not name.startswith("_")
            if is_plain and name not in _LEFT_OUT:
                found[f"{room}.{name}"] = value
    return found


def calls_of(function: Callable[..., Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yields (arrays of the device, arguments of the host) that may suit a function."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return
    needed = [x for x in parameters.values() if x.kind is not x.VAR_KEYWORD]
    needed = [x for x in needed if x.default is x.empty and x.kind is not x.VAR_POSITIONAL]
    tensors = [x.name for x in needed if x.name in _TENSORS]
    others = [x.name for x in needed if x.name not in _TENSORS]
    if not tensors or any(name not in _FIXED for name in others):
        return
    choices = list(itertools.product(*(_FIXED[name] for name in others)))
    optional = [{}, *({"axis": each} for each in (0, -1) if "axis" in parameters.keys() - others)]
    for (shape, dtype), values, more in itertools.product(_FORMS, choices, optional):
        arrays = {name: _array(name, number, shape, dtype) for number, name in enumerate(tensors)}
        yield arrays, {**dict(zip(others, values, strict=True)), **more}


def calls_for(name: str, function: Callable[..., Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yields the call of the table for a name, or calls that may suit the function."""
    if name not in CALLS:
        return calls_of(function)
    return iter([({x: ARRAYS[x] for x in _parameters(function) if x in ARRAYS}, {})])


def _array(name: str, number: int, shape: Any, dtype: Any) -> np.ndarray:
    if number and name in _INTEGERS:
        return np.abs(drawn(shape[:1], np.int32, number)) % 3
    if number and name in _FILTERS:
        return drawn((2, 2, 4, 3), np.float32, number)
    return drawn(shape, dtype, number)


def status_of(name: str, function: Callable[..., Any], most: int = 3) -> tuple[str, str]:
    """Returns whether a function is served, and a difference or the reason for a refusal."""
    num_compared, reason, status = 0, "", HOST if name in OF_HOST else NOT_TRIED
    function = CALLS.get(name, function)
    for arrays, others in itertools.islice(calls_for(name, function), 60):
        found = _compared_call(function, arrays, others, results)
        if (found is None and name in CALLS) or (found and found[0] == SERVED and found[1]):
            found = _compared_call(function, arrays, others, tf.function(results))
        if found is None:
            continue  # TensorFlow does not accept these arguments.
        status, text = found
        if text and status == SERVED:
            return status, text
        reason = reason or text
        num_compared += 1
        if status == REFUSED or num_compared == most:
            break
    return status, reason


def _parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def results(function: Callable[..., Any], tensors: Any, others: Any) -> list[Any]:
    """Returns the results of a function, each as a tensor of TensorFlow."""
    result = function(**tensors, **others)
    return [tf.convert_to_tensor(each) for each in tf.nest.flatten(result)]


def _compared_call(
    function: Callable[..., Any], arrays: Any, others: Any, compute: Callable[..., Any]
) -> tuple[str, str] | None:
    """Compares a call with TensorFlow's results; returns `None` if TensorFlow raises an error.

    Args:
        function: function to call.
        arrays: arguments that are tensors of the device, by name.
        others: further arguments, by name.
        compute: function that calls a function in TensorFlow, eagerly or in a graph.
    """
    try:
        tensors = {name: tf.constant(each) for name, each in arrays.items()}
        wanted = compute(function, tensors, others)
    except Exception:
        wanted = []  # A function that this TensorFlow cannot compute on processors, or a bad call.
    is_compared = bool(wanted) and all(each.dtype != tf.string for each in wanted)
    if not is_compared and function not in CALLS.values():
        return None

    def call(*tensors: Any) -> Any:
        return results(function, dict(zip(arrays, tensors, strict=True)), others)

    given = [torch.from_numpy(np.array(each)) for each in arrays.values()]
    form = f"({ {name: f'{x.dtype}{list(x.shape)}' for name, x in arrays.items()} }, {others})"
    try:
        found = on_device(call)(*given)
    except Error as error:
        return REFUSED, str(error).splitlines()[0]
    except Exception as error:
        text = f"{form} {type(error).__name__}: {str(error)[:300]}"
        return (SERVED, text) if is_compared else None
    if not is_compared:
        return None
    for one, other in zip(found, wanted, strict=True):
        text = compared(one, other)
        if text:
            return SERVED, f"{form} {text}"
    if function in _WITHOUT_GRADIENT or not all(map(_is_finite, wanted)):
        return SERVED, ""
    of_tensorflow = call if compute is results else tf.function(call)
    text = difference_of_gradients(call, list(arrays.values()), of_tensorflow)
    return SERVED, text and f"{form} {text}"


def _is_finite(value: Any) -> bool:
    return not value.dtype.is_floating or bool(tf.reduce_all(tf.math.is_finite(value)))


def write_page(found: dict[str, tuple[str, str]]) -> None:
    """Writes the table of names."""
    lines = [
        "# Functions of TensorFlow on the device",
        "",
        "TensorFlow traces functions into raw operators, so a function is served if its operators "
        "are. This table is",
        "written by `python -m tensorflow_ops.names --write`, which calls each name with generated "
        "arguments, in TensorFlow",
        "and here. A function that is served may still refuse some of its arguments, by name. "
        "Functions of the host take no values of the",
        "device.",
    ]
    for room in ROOMS:
        lines += ["", f"## {room}", "", "| | Names |", "|---|---|"]
        for status in (SERVED, REFUSED, HOST, NOT_TRIED):
            names = [
                name.removeprefix(f"{room}.")
                for name, (other, _) in found.items()
                if other == status and name.rpartition(".")[0] == room
            ]
            if names:
                listed = ", ".join(f"`{x}`" for x in names)
                lines.append(f"| {status} ({len(names)}) | {listed} |")
    PAGE.write_text("\n".join(lines) + "\n")


def main() -> int:
    """Calls all functions, or those that are named."""
    ipu.ipu_strategy.IPUStrategy()
    named = [each for each in sys.argv[1:] if not each.startswith("-")]
    found, num_different = {}, 0
    for name, function in functions().items():
        if named and name not in named:
            continue
        status, text = found[name] = status_of(name, function)
        if status == SERVED and text:
            num_different += 1
            print(f"{name} {text}", flush=True)
        elif named or "--all" in sys.argv:
            print(f"{name}: {status} {text}", flush=True)
    for status in (SERVED, REFUSED, HOST, NOT_TRIED):
        print(f"{sum(status == each for each, _ in found.values())} names {status}")
    print(f"{num_different} differ")
    if "--write" in sys.argv:
        write_page(found)
    return num_different > 0


if __name__ == "__main__":
    raise SystemExit(main())
