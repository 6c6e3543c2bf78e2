"""Computes values of nodes on the host while a model is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten


def evaluate(node: fx.Node, known: Mapping[fx.Node, Any]) -> Any:
    """Runs the operation of `node` on the CPU; `known` has the value of each of its inputs."""
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
    # Values need not have the strides that the graph says.
    target = aten.reshape.default if node.target is aten.view.default else node.target
    return run_on_host(target, args, kwargs)


def run_on_host(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Runs an operation on CPU tensors, whatever device its arguments ask for."""
    host = torch.device("cpu")
    args = [host if isinstance(value, torch.device) else value for value in args]
    kwargs = {key: value for key, value in kwargs.items() if key not in ("device", "pin_memory")}
    with in_own_types():
        return func(*args, **kwargs)


def in_own_types() -> AbstractContextManager[object]:
    """Disables the user's CPU autocast for operations that the CPU computes for the device."""
    if torch.is_autocast_enabled("cpu"):
        return torch.autocast("cpu", enabled=False)
    return nullcontext()
