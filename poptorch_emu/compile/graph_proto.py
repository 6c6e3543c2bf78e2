"""Writes a compiled graph as an ONNX protobuf if an environment variable asks for it.

Format and data types are ONNX's. The operations have the domains of their libraries, for example
"aten" for PyTorch's. Weights are inputs without values.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import fx

from poptorch_emu.compile.executable import Executable
from poptorch_emu.environment import integer_of
from poptorch_emu.errors import compiler_error
from poptorch_emu.ir.graph import Graph, operation_of, record_of, source_of
from poptorch_emu.log import logger
from poptorch_emu.schedule.partition import Partition
from poptorch_emu.torch_versions import OpOverload
from poptorch_emu.version import __version__

_FILE = "POPTORCH_EXPORT_PROTO_FILE"
_AS_BINARY = "POPTORCH_EXPORT_PROTO_AS_BINARY"
# Name of the file if the variable names a folder. Source: PopTorch's environment variables.
_NAME_IN_FOLDER = "model.proto"
_OWN_DOMAIN = "poptorch_emu"


def export(executable: Executable) -> None:
    """Writes the proto to `POPTORCH_EXPORT_PROTO_FILE`, as text or binary (exact but for names).

    Raises:
        Error: the package `onnx` is missing, the file cannot be written, or
            `POPTORCH_EXPORT_PROTO_AS_BINARY` is not an integer.
    """
    target = os.environ.get(_FILE)
    if not target:
        return
    is_binary = integer_of(_AS_BINARY) != 0
    try:
        onnx = importlib.import_module("onnx")
    except ModuleNotFoundError as cause:
        raise compiler_error(
            f"{_FILE} asks for a proto, which takes the package onnx: install it with "
            "`pip install onnx`, or unset the variable."
        ) from cause
    path = Path(target)
    path = path / _NAME_IN_FOLDER if path.is_dir() else path
    model = _Protos(onnx, executable.partition).model(executable.graph)
    try:
        onnx.save_model(model, path, format="protobuf" if is_binary else "textproto")
    except OSError as cause:
        raise compiler_error(f"{_FILE} names {path}, which cannot be written: {cause}.") from cause
    logger.info("Wrote the graph to %s", path)


class _Protos:
    """Makes the messages of one graph with the optional package `onnx`."""

    def __init__(self, onnx: Any, placed: Partition) -> None:
        self._onnx = onnx
        self._placed = placed
        self._domains: set[str] = set()

    def model(self, graph: Graph) -> Any:
        """Returns the whole model."""
        content = self._graph(graph, "forward and backward")
        opsets = [self._onnx.helper.make_opsetid(domain, 1) for domain in sorted(self._domains)]
        return self._onnx.helper.make_model(
            content,
            opset_imports=opsets,
            producer_name="poptorch_emu",
            producer_version=__version__,
        )

    def _graph(self, graph: Graph, name: str) -> Any:
        helper = self._onnx.helper
        sources = [self._value(node.name, node, str(source_of(node))) for node in graph.sources]
        nodes = [self._node(node, graph) for node in graph.operations]
        results = []
        for index, (sink, node) in enumerate(graph.results):
            # ONNX does not support several destinations of a value, so each gets an alias.
            self._domains.add(_OWN_DOMAIN)
            alias = f"result_{index}"
            nodes.append(helper.make_node("alias", [_name_of(node)], [alias], domain=_OWN_DOMAIN))
            results.append(self._value(alias, node, str(sink)))
        return helper.make_graph(nodes, name, sources, results)

    def _value(self, name: str, node: fx.Node, text: str) -> Any:
        value: torch.Tensor = node.meta["val"]
        dtype = torch.empty(0, dtype=value.dtype).numpy().dtype
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(dtype)
        return self._onnx.helper.make_tensor_value_info(name, kind, list(value.shape), text)

    def _node(self, node: fx.Node, graph: Graph) -> Any:
        assert isinstance(node.target, OpOverload), "operations are ATen's and ours"
        domain, _, name = node.target._schema.name.partition("::")
        self._domains.add(domain)
        record = record_of(node)
        message = self._onnx.helper.make_node(
            name,
            [_name_of(value) for value in node.all_input_nodes],
            list(_outputs(node)),
            name="/".join(part for part in (record.scope, node.name) if part),
            domain=domain,
            doc_string=record.source,
            overload=node.target._overloadname,
        )
        message.attribute.extend(self._attributes(node, graph))
        return message

    def _attributes(self, node: fx.Node, graph: Graph) -> Iterator[Any]:
        make = self._onnx.helper.make_attribute
        port = self._placed.port_of.get(node)
        if port is not None:
            yield make("__pipeline_stage", port[1])
            ipu = self._placed.ipu_ids[self._placed.ipu_of_stage[port[1]]]
            yield make("__ipu_number", ipu)
        schema = node.target._schema.arguments  # type: ignore[union-attr]
        named = {argument.name: value for argument, value in zip(schema, node.args, strict=False)}
        for key, value in {**named, **node.kwargs}.items():
            if isinstance(value, str) and value in graph.regions:
                yield make(key, self._graph(graph.regions[value], value))
            elif value is not None:
                yield make(key, _plain(value))


def _plain(value: Any) -> Any:
    """Returns an argument as ONNX supports it: numbers of one type, or otherwise text."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (list, tuple)):
        kinds = set(map(type, value))
        return list(value) if kinds in ({int}, {float}) else str(value)
    return value if isinstance(value, (int, float)) else str(value)


def _name_of(value: fx.Node) -> str:
    """Returns the name of a value; one of several results has its operation's name and a number."""
    operation = operation_of(value)
    return value.name if operation is value else f"{operation.name}:{value.args[1]}"


def _outputs(node: fx.Node) -> Iterator[str]:
    if isinstance(node.meta["val"], (list, tuple)):
        yield from (f"{node.name}:{index}" for index in range(len(node.meta["val"])))
    else:
        yield node.name
