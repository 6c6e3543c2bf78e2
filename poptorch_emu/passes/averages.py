"""Moves moving averages of weights from the graph of a micro-batch to the update."""

from __future__ import annotations

from torch import fx

from poptorch_emu.errors import compiler_error
from poptorch_emu.ir.average import MOVING_AVERAGE
from poptorch_emu.ir.graph import Average, Graph, SinkKind, Source, SourceKind, record_of, source_of
from poptorch_emu.ir.operator_traits import traits_of
from poptorch_emu.passes.simplify import remove_dead
from poptorch_emu.torch_versions import OpOverload

_OF_FACTOR = (SourceKind.INPUT, SourceKind.CONSTANT, SourceKind.VARIABLE)


def run(graph: Graph) -> Graph:
    """Removes the averages in place, adds them to `Graph.averages`, and returns the graph.

    Raises:
        Error: an average or its weight is no parameter or buffer, the average is trained or changed
            elsewhere, `forward` computes the factor, or the model reads the result.
    """
    nodes = [node for node in graph.operations if node.target is MOVING_AVERAGE]
    for node in nodes:
        weight, average, factor = map(_source, node.all_input_nodes)
        _check(graph, node, weight, average, factor)
        graph.averages += (Average(weight.name, average.name, factor),)
        graph.fx.erase_node(node)
    if nodes:
        remove_dead(graph)
    return graph


def _source(value: fx.Node) -> Source:
    """Returns the source that a value is a view of; for a computed value, a LINK source."""
    while value.op == "call_function" and isinstance(value.target, OpOverload):
        if not traits_of(value.target).is_view or not _has_as_many(value, value.all_input_nodes[0]):
            break
        value = value.all_input_nodes[0]
    return source_of(value) if value.op == "placeholder" else Source(SourceKind.LINK)


def _has_as_many(one: fx.Node, other: fx.Node) -> bool:
    return bool(one.meta["val"].numel() == other.meta["val"].numel())


def _check(graph: Graph, node: fx.Node, weight: Source, average: Source, factor: Source) -> None:
    where = f"The moving average (ExpMovAvg) at {record_of(node).source or 'an unknown line'}"
    if not {weight.kind, average.kind} == {SourceKind.VARIABLE}:
        raise compiler_error(
            f"{where} needs a parameter or a buffer with numbers as its weight, and one as its "
            "average, because the average of a computed value would not last from call to call."
        )
    if factor.kind not in _OF_FACTOR:
        raise compiler_error(
            f"{where} has a factor that forward computes. Give it as an input of the call, or as a "
            "constant."
        )
    written = {sink.name for sink in graph.sinks if sink.kind is not SinkKind.OUTPUT}
    written |= {other.average for other in graph.averages}
    if average.name in written:
        raise compiler_error(
            f"{where} changes '{average.name}', which is trained or changed elsewhere, too. Set "
            "requires_grad to False, and call it once for each average."
        )
    if node.users:
        raise compiler_error(
            f"{where} is read by the model, but the average changes only after its last "
            f"micro-batch. Read '{average.name}' itself, which has the old value."
        )
