"""The values of a graph that are the same on all replicas.

Only such a value can be cut over the replicas while it is stashed. Its link then waits for the
parts of all replicas. This cannot deadlock, because all replicas run the same lists.
"""

from __future__ import annotations

from torch import fx

from poptorch_emu.config import CompileConfig
from poptorch_emu.ir.control import HOST_CALL
from poptorch_emu.ir.exchange import is_same_everywhere
from poptorch_emu.ir.graph import Graph, SinkKind, SourceKind, source_of
from poptorch_emu.ir.operator_traits import traits_of
from poptorch_emu.torch_versions import OpOverload


def replica_equal_values(graph: Graph, config: CompileConfig) -> frozenset[fx.Node]:
    """Returns the values that do not depend on a replica's own data, random numbers or state.

    Values differ if they depend on inputs (unless all replicas read the same ones), random numbers,
    weights of replica groups, variables that `forward` writes, or calls of the host. Results of an
    all-gather or an all-reduce are the same on all replicas again.
    """
    if _calls_host(graph):
        return frozenset()
    own = {sink.name for sink in graph.sinks if sink.kind is SinkKind.VARIABLE}
    own |= {entry.name for entry in config.weight_groups}
    equal: set[fx.Node] = set()
    for node in graph.fx.nodes:
        if node.op == "placeholder":
            is_equal = _is_equal_source(node, own, config)
        else:
            is_equal = node.op == "call_function" and (
                is_same_everywhere(node)
                or (equal.issuperset(node.all_input_nodes) and not _is_own(node))
            )
        if is_equal:
            equal.add(node)
    return frozenset(equal)


def _is_equal_source(node: fx.Node, own: set[str], config: CompileConfig) -> bool:
    source = source_of(node)
    if source.kind is SourceKind.INPUT:
        return config.num_input_groups == 1 or node.meta["val"].dim() == 0
    if source.kind is SourceKind.VARIABLE:
        return source.name not in own
    return source.kind in (SourceKind.CONSTANT, SourceKind.SCALAR)


def _is_own(node: fx.Node) -> bool:
    """Returns whether the result differs between replicas although the inputs are the same."""
    return isinstance(node.target, OpOverload) and traits_of(node.target).crosses_replicas


def _calls_host(graph: Graph) -> bool:
    """Returns whether the graph or one of its regions calls the host, with unknown results."""
    here = any(node.target is HOST_CALL for node in graph.fx.nodes)
    return here or any(_calls_host(region) for region in graph.regions.values())
