"""Replaces tensors of PyTorch by TensorFlow's symbolic tensors in TensorFlow programs.

Programs without TensorFlow see tensors of PyTorch. No function here imports TensorFlow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import torch

_GRAPHS = "poptorch_emu.keras.tensorflow.functions.device_graph"


def current_graph() -> Any:
    """Returns the device's TensorFlow graph that this thread adds to, or `None`."""
    graphs = sys.modules.get(_GRAPHS)
    return None if graphs is None else graphs.current_graph()


@contextmanager
def in_graph() -> Iterator[None]:
    """Lets TensorFlow add operations to a graph of the device, if TensorFlow is in use."""
    graphs = sys.modules.get(_GRAPHS)
    if graphs is None:
        yield
        return
    with graphs.device_graph():
        yield


@contextmanager
def outside_of_graphs() -> Iterator[None]:
    """Lets TensorFlow compute on the host, independently of this thread's graph."""
    if current_graph() is None:
        yield
        return
    with sys.modules["tensorflow"].init_scope():
        yield


def entered(values: Any) -> Any:
    """Returns a structure with symbolic tensors in place of tensors of PyTorch."""
    graph = current_graph()
    if graph is None:
        return values
    return mapped(values, lambda x: graph.enter(x) if isinstance(x, torch.Tensor) else x)


def left(values: Any) -> Any:
    """Returns a structure with PyTorch tensors, or host arrays, in place of symbolic ones."""
    graph = current_graph()
    return values if graph is None else mapped(values, graph.left)


def mapped(values: Any, function: Callable[[Any], Any]) -> Any:
    """Applies a function to the leaves; returns the same object if no leaf changes."""
    if not isinstance(values, (list, tuple, dict)):
        return function(values)
    before = keras.tree.flatten(values)
    after = [function(each) for each in before]
    if all(one is other for one, other in zip(before, after, strict=True)):
        return values
    return keras.tree.pack_sequence_as(values, after)
