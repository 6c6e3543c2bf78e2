"""Conversion of a graph to plain values that JSON can hold, and back.

A restored graph is only for inspection: its values are meta tensors, its constants have no values,
and arguments of other types are replaced by their text.
"""

from __future__ import annotations

import operator
from dataclasses import asdict
from typing import Any

import torch
from torch import fx

from poptorch_emu.ir.graph import Graph, Sink, SinkKind, Source, SourceKind, record_of, source_of
from poptorch_emu.ir.record import BlockPlace, NodeRecord, Phase

_GETITEM = "getitem"
_CONSTANT_TYPES = (torch.dtype, torch.device, torch.layout, torch.memory_format)


def store(graph: Graph) -> dict[str, Any]:
    """Returns `graph` as dictionaries, lists, strings and numbers."""
    return {
        "nodes": [_stored_node(node) for node in graph.fx.nodes if node.op != "output"],
        "results": [[sink.kind.value, sink.name, node.name] for sink, node in graph.results],
        "regions": {name: store(region) for name, region in graph.regions.items()},
        "repeats": graph.repeats,
    }


def restore(stored: dict[str, Any]) -> tuple[Graph, dict[str, fx.Node]]:
    """Returns the graph that `store` converted to `stored`, and its nodes by name."""
    graph = Graph()
    nodes: dict[str, fx.Node] = {}
    for entry in stored["nodes"]:
        value, record = _value(entry["value"]), _record(entry["record"])
        if "source" in entry:
            kind, name = entry["source"]
            node = graph.add_source(Source(SourceKind(kind), name), value, record)
        else:
            args, kwargs = _argument(entry["args"], nodes), _argument(entry["kwargs"], nodes)
            node = graph.add_operation(
                _operator(entry["target"]), tuple(args), kwargs["dict"], value, record
            )
        nodes[entry["name"]] = node
    for name, node in nodes.items():
        node.name = name
    graph.set_results(
        (Sink(SinkKind(kind), name), nodes[node]) for kind, name, node in stored["results"]
    )
    graph.regions = {name: restore(region)[0] for name, region in stored["regions"].items()}
    graph.repeats = stored["repeats"]
    return graph, nodes


def _stored_node(node: fx.Node) -> dict[str, Any]:
    record = asdict(record_of(node))
    record["phase"] = record_of(node).phase.value
    entry = {"name": node.name, "value": _stored_value(node.meta["val"]), "record": record}
    if node.op == "placeholder":
        source = source_of(node)
        return {**entry, "source": [source.kind.value, source.name]}
    return {
        **entry,
        "target": _GETITEM if node.target is operator.getitem else str(node.target),
        "args": _stored_argument(node.args),
        "kwargs": {"dict": {key: _stored_argument(value) for key, value in node.kwargs.items()}},
    }


def _stored_value(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return {
            "dtype": str(value.dtype),
            "shape": list(value.shape),
            "stride": list(value.stride()),
        }
    if isinstance(value, (tuple, list)):
        return [_stored_value(item) for item in value]
    return None


def _value(stored: Any) -> Any:
    if isinstance(stored, list):
        return tuple(_value(item) for item in stored)
    if stored is None:
        return None
    return torch.empty_strided(
        stored["shape"], stored["stride"], dtype=_torch_value(stored["dtype"]), device="meta"
    )


def _stored_argument(value: Any) -> Any:
    if isinstance(value, fx.Node):
        return {"node": value.name}
    if isinstance(value, (list, tuple)):
        return [_stored_argument(item) for item in value]
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, _CONSTANT_TYPES):
        return {"torch": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return {"text": str(value)}


def _argument(stored: Any, nodes: dict[str, fx.Node]) -> Any:
    if isinstance(stored, list):
        return [_argument(item, nodes) for item in stored]
    if not isinstance(stored, dict):
        return stored
    ((kind, content),) = stored.items()
    if kind == "node":
        return nodes[content]
    if kind == "device":
        return torch.device(content)
    if kind == "torch":
        return _torch_value(content)
    if kind == "dict":
        return {"dict": {key: _argument(value, nodes) for key, value in content.items()}}
    return content


def _torch_value(text: str) -> Any:
    return getattr(torch, text.removeprefix("torch."))


def _operator(text: str) -> Any:
    if text == _GETITEM:
        return operator.getitem
    namespace, packet, overload = text.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def _record(stored: dict[str, Any]) -> NodeRecord:
    place = BlockPlace(**stored["place"])
    return NodeRecord(**{**stored, "place": place, "phase": Phase(stored["phase"])})
