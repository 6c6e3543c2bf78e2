"""Compares the strides that a capture assumed with those that PyTorch's kernels return.

For debugging: it runs each operation of a graph once, on zeros.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from poptorch_emu.ir.evaluate import run_on_host
from poptorch_emu.ir.graph import Graph, record_of
from poptorch_emu.ir.operator_traits import traits_of
from poptorch_emu.log import compiler_logger
from poptorch_emu.torch_versions import OpOverload, pytree

aten = torch.ops.aten

# Operators that return uninitialised memory.
_EMPTY = ("empty", "new_empty")
# Only some processors have kernels for 16-bit numbers, which may return other strides.
_NARROW = (torch.float16, torch.bfloat16)


def warn_of_strides(graph: Graph) -> None:
    """Logs a warning for each operation whose kernel returns other strides, at level DEBUG.

    Args:
        graph: captured graph without mutation.
    """
    if compiler_logger.isEnabledFor(logging.DEBUG):
        for fault in dict.fromkeys(faults(graph)):
            compiler_logger.warning("%s", fault)


def faults(graph: Graph) -> Iterator[str]:
    """Yields one sentence for each operation whose kernel returns other strides than captured."""
    for region in graph.regions.values():
        yield from faults(region)
    known: set[str] = set()
    for node in graph.operations:
        key = f"{node.target} {map_arg((node.args, node.kwargs), _form)}"
        if key not in known and _is_comparable(node):
            known.add(key)
            yield from _faults_of(node)


def _faults_of(node: fx.Node) -> Iterator[str]:
    args, kwargs = map_arg((node.args, node.kwargs), lambda each: _zeros(each.meta["val"]))
    try:
        results = pytree.tree_leaves(run_on_host(node.target, args, kwargs))
    except (RuntimeError, ValueError, IndexError):
        return  # The kernel rejects zeros.
    for expected, actual in zip(pytree.tree_leaves(node.meta["val"]), results, strict=True):
        if actual is None or actual.shape != expected.shape:
            continue  # Results that nobody reads may have another shape.
        if _relevant(expected) != _relevant(actual):
            yield (
                f"{node.target} at {record_of(node).source}: the capture assumed the strides "
                f"{list(expected.stride())} for a result of shape {list(expected.shape)}, but "
                f"PyTorch's kernel for the CPU returns {list(actual.stride())}. Code that reads "
                "strides may differ from PyTorch; please report this operator."
            )


def _is_comparable(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return False
    values = [each.meta["val"] for each in node.all_input_nodes]
    is_predictable = torch.Tag.nondeterministic_seeded not in target.tags
    return (
        is_predictable
        and traits_of(target).is_pure
        and not target._schema.name.partition("::")[2].startswith(_EMPTY)
        and all(isinstance(each, torch.Tensor) for each in values)
        and all(each.layout is torch.strided for each in values)
    )


def _zeros(value: torch.Tensor) -> torch.Tensor:
    dtype = torch.float32 if value.dtype in _NARROW else value.dtype
    steps = zip(value.shape, value.stride(), strict=True)
    reach = 0 if value.numel() == 0 else 1 + sum((size - 1) * step for size, step in steps)
    memory = torch.zeros(reach, dtype=dtype, device="cpu")
    return memory.as_strided(value.shape, value.stride())


def _form(node: fx.Node) -> Any:
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        return None
    return f"{value.dtype} {list(value.shape)} {list(value.stride())}"


def _relevant(value: torch.Tensor) -> list[int]:
    """Returns the strides that decide about places in memory."""
    if value.numel() == 0:
        return []
    return [step for size, step in zip(value.shape, value.stride(), strict=True) if size > 1]
