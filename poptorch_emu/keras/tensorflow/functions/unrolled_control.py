"""Conditions and loops of TensorFlow in a graph of the device.

Conditions of loops are known at compilation, so that loops are unrolled. For a condition on the
device both branches are computed, and `tf.where` selects elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import torch
from tensorflow.python.ops import cond as cond_module
from tensorflow.python.ops import custom_gradient as gradient_module
from tensorflow.python.ops import while_loop as while_module

from poptorch_emu.keras.tensorflow.functions.device_graph import DeviceGraph, current_graph
from poptorch_emu.keras.tensorflow.functions.raw_call import refusal

_MOST_ITERATIONS = 10**4


def install() -> None:
    """Replaces TensorFlow's functions; outside of the device's graphs they call the originals."""
    for module, name, function in (
        (cond_module, "cond", _cond),
        (while_module, "while_loop", _while_loop),
        (gradient_module, "_graph_mode_decorator", _custom_gradient),
    ):
        _replace(module, name, function)
    for owner, name, instead in (
        (tf, "gradients", "Use tf.GradientTape"),
        (tf, "hessians", "Use tf.GradientTape"),
        (tf.autodiff, "ForwardAccumulator", "Use tf.GradientTape"),
        (tf, "vectorized_map", "Use tf.map_fn, or write the operation for all rows"),
        (tf, "switch_case", "Use tf.where, or Python's if for numbers of Python"),
    ):
        _replace(owner, name, _refused(name, instead)) if hasattr(owner, name) else None


def _replace(module: Any, name: str, function: Callable[..., Any]) -> None:
    original = getattr(module, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        graph = current_graph()
        if graph is None:
            return original(*args, **kwargs)
        return function(graph, *args, **kwargs)

    setattr(module, name, call)


def _refused(name: str, instead: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise refusal(name, instead)

    return refuse


def _cond(
    graph: DeviceGraph, pred: Any, true_fn: Any = None, false_fn: Any = None, *args: Any,
    **kwargs: Any,
) -> Any:  # fmt: skip
    condition = tf.convert_to_tensor(pred)
    value = graph.value_of(condition)
    if not isinstance(value, torch.Tensor):
        found = (true_fn if value else false_fn)()
        return condition if isinstance(found, tf.Operation) else found
    with graph.without_effects("tf.cond whose condition is computed on the IPU"):
        results = true_fn(), false_fn()
    for leaf in tf.nest.flatten(results):
        branch = graph.value_of(tf.convert_to_tensor(leaf))
        if isinstance(branch, torch.Tensor) and branch.requires_grad:
            raise refusal(
                "tf.cond whose condition is computed on the IPU, in a result with a gradient",
                "Use tf.where with operands that are finite in both cases",
            )
    return tf.nest.map_structure(lambda one, other: tf.where(condition, one, other), *results)


def _while_loop(
    graph: DeviceGraph, cond: Any, body: Any, loop_vars: Any, shape_invariants: Any = None,
    parallel_iterations: Any = 10, back_prop: Any = True, swap_memory: Any = False,
    name: Any = None, maximum_iterations: Any = None, return_same_structure: bool = False,
) -> Any:  # fmt: skip
    values = tf.nest.map_structure(_as_tensor, loop_vars)
    values = values if isinstance(values, (list, tuple)) else [values]
    most = None if maximum_iterations is None else int(_known(graph, maximum_iterations))
    count = 0
    while (most is None or count < most) and bool(_known(graph, cond(*values))):
        found = body(*values)
        values = tuple(found) if isinstance(found, (list, tuple)) else (found,)
        count += 1
        if count > _MOST_ITERATIONS:
            raise refusal(f"loop of more than {_MOST_ITERATIONS} iterations in one function")
    if return_same_structure:
        return type(loop_vars)(values) if type(loop_vars) in (list, tuple) else values
    return values[0] if len(values) == 1 else values


def _as_tensor(value: Any) -> Any:
    is_number = isinstance(value, (bool, int, float, np.ndarray, np.generic))
    return tf.convert_to_tensor(value) if is_number else value


def _known(graph: DeviceGraph, value: Any) -> Any:
    """Returns a value of the host.

    Raises:
        Error: the device computes the value.
    """
    value = graph.value_of(tf.convert_to_tensor(value))
    if isinstance(value, torch.Tensor):
        raise refusal(
            "loop whose condition is computed on the IPU",
            "How often a loop runs is known when a program is compiled: loop over a number of "
            "Python, and keep values by tf.where once they are done",
        )
    return value


# TensorFlow's own functions whose gradients autograd finds as well.
_WITH_OWN_GRADIENT = ("swish.<locals>.swish_impl", "recompute_grad.<locals>.inner")


def _custom_gradient(graph: DeviceGraph, function: Any, args: Any, kwargs: Any) -> Any:
    """Runs functions of TensorFlow whose gradients autograd finds as well."""
    is_of_tensorflow = getattr(function, "__module__", "").startswith("tensorflow.")
    if is_of_tensorflow and function.__qualname__ in _WITH_OWN_GRADIENT:
        return function(*args, **kwargs)[0]
    raise refusal(
        f"custom_gradient of {getattr(function, '__name__', 'a function')}",
        "Write the function so that its gradient follows from it, for example with "
        "tf.stop_gradient",
    )
