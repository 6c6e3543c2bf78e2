"""Text form of a graph with its records: one line for each operation, in order."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from poptorch_emu.ir.graph import Graph, record_of, source_of


def to_text(graph: Graph) -> str:
    """Returns a listing of `graph`: sources, operations with stage and line, results."""
    lines = [f"{node.name}: {_type(node)} = {source_of(node)}" for node in graph.sources]
    lines += [_operation_line(node) for node in graph.operations]
    lines += [f"{sink} <- {node.name}" for sink, node in graph.results]
    for name, region in graph.regions.items():
        lines += [f"region {name}:", *("  " + line for line in to_text(region).splitlines())]
    return "\n".join(lines)


def _operation_line(node: fx.Node) -> str:
    record = record_of(node)
    args = [_argument(arg) for arg in node.args]
    args += [f"{key}={_argument(value)}" for key, value in node.kwargs.items()]
    block = f" block {record.place.block_id!r}" if record.place.block_id else ""
    where = f"# {record.phase.value}, stage {record.place.stage}{block}, {record.source}"
    return f"{node.name}: {_type(node)} = {node.target}({', '.join(args)})  {where}"


def _argument(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_argument(item) for item in value) + "]"
    return str(value)


def _type(node: fx.Node) -> str:
    return type_text(node.meta["val"])


def type_text(value: Any) -> str:
    """Returns the type of a tensor, for example `float32[4, 3]`, or of several in parentheses."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(type_text(item) for item in value) + ")"
    return str(value)
