"""The verifier of graphs, which runs between passes. A fault is our bug, not the user's."""

from __future__ import annotations

import operator
from collections.abc import Mapping

from torch import fx

from poptorch_emu.ir.control import region_names
from poptorch_emu.ir.graph import Graph, Source, SourceKind
from poptorch_emu.ir.mutation import is_mutating
from poptorch_emu.ir.record import NodeRecord
from poptorch_emu.torch_versions import OpOverload


class IllegalGraphError(AssertionError):
    """A graph breaks a rule. The message names the node."""


def verify(graph: Graph, regions: Mapping[str, Graph] | None = None) -> Graph:
    """Returns `graph` if it and its regions are well-formed and mutate nothing.

    Args:
        graph: graph to check.
        regions: regions that its nodes may name; by default its own.

    Raises:
        IllegalGraphError: a node lacks its record or its fake value, mutates an argument, or names
            an unknown region; or sinks and results do not match.
    """
    regions = graph.regions if regions is None else regions
    for region in graph.regions.values():
        verify(region, regions)
    graph.fx.lint()
    for node in graph.fx.nodes:
        fault = _fault(node, graph, regions)
        if fault:
            raise IllegalGraphError(f"{node.format_node()}: {fault}.")
    results = graph.results
    sinks = [sink for sink, _ in results]
    if len(set(sinks)) != len(sinks):
        raise IllegalGraphError(f"Two results have the same destination: {sinks}.")
    return graph


def _fault(node: fx.Node, graph: Graph, regions: Mapping[str, Graph]) -> str:
    if node.op == "output":
        num_results = len(node.args[0])  # type: ignore[arg-type]
        return "" if num_results == len(graph.sinks) else "results and sinks differ in number"
    if node.op not in ("placeholder", "call_function"):
        return f"a node of kind {node.op} is not allowed"
    if not isinstance(node.meta.get("record"), NodeRecord):
        return "it has no record"
    if "val" not in node.meta:
        return "it has no fake value"
    if node.op == "placeholder":
        return _source_fault(node, graph)
    unknown = [name for name in region_names(node) if name not in regions]
    if unknown:
        return f"it runs {unknown}, which are not regions of the graph"
    return _operation_fault(node)


def _source_fault(node: fx.Node, graph: Graph) -> str:
    source = node.meta.get("source")
    if not isinstance(source, Source):
        return "it has no source"
    if source.kind is SourceKind.CONSTANT and source.name not in graph.constants:
        return f"constant {source.name} has no value"
    return ""


def _operation_fault(node: fx.Node) -> str:
    if node.target is operator.getitem:
        return ""
    if not isinstance(node.target, OpOverload):
        return "it is not an operator of PyTorch's dispatcher"
    if is_mutating(node):
        return "it changes one of its arguments"
    return ""
