"""A graph as nested plain values, for JSON."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from poptorch_emu.ir.graph import Graph, record_of, source_of


def to_plain(graph: Graph) -> dict[str, Any]:
    """Returns sources, operations and results of `graph` as dictionaries, lists and strings."""
    return {
        "sources": [
            {"name": node.name, "source": str(source_of(node)), "type": _type_of(node)}
            for node in graph.sources
        ],
        "operations": [_operation(node) for node in graph.operations],
        "results": [{"sink": str(sink), "value": node.name} for sink, node in graph.results],
    }


def _operation(node: fx.Node) -> dict[str, Any]:
    record = record_of(node)
    return {
        "name": node.name,
        "type": str(node.target),
        "inputs": [value.name for value in node.all_input_nodes],
        "arguments": str((node.args, node.kwargs)),
        "output": _type_of(node),
        "phase": record.phase.value,
        "block": record.place.block_id,
        "stage": record.place.stage,
        "ipu": record.place.ipu,
        "module": record.module,
        "source": record.source,
    }


def _type_of(node: fx.Node) -> Any:
    value = node.meta["val"]
    return [_text(item) for item in value] if isinstance(value, (list, tuple)) else _text(value)


def _text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return str(value)
