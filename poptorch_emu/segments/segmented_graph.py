"""Cuts a partitioned graph into segments and finds what crosses between them."""

from __future__ import annotations

import operator
from collections.abc import Set
from dataclasses import dataclass, field

from torch import fx

from poptorch_emu.ir.graph import Graph, Sink, SinkKind, operation_of, source_of
from poptorch_emu.ir.operator_traits import traits_of
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.partition import Partition, port_at
from poptorch_emu.schedule.schedule import Port
from poptorch_emu.segments.segment import Segment
from poptorch_emu.torch_versions import OpOverload


@dataclass
class Crossing:
    """The values that flow from one segment to another, by the order of their first use."""

    producer: Port
    consumer: Port
    nodes: list[fx.Node] = field(default_factory=list)


@dataclass
class SegmentedGraph:
    """All segments of one micro-batch, what flows between them, and where results appear."""

    segments: dict[Port, Segment]
    crossings: dict[tuple[Port, Port], Crossing]
    results: list[tuple[Sink, Port, fx.Node]]


def cut(
    graph: Graph, partition: Partition, is_training: bool, recomputed: Set[fx.Node] = frozenset()
) -> SegmentedGraph:
    """Returns one segment for each stage and kind of action, empty ones included.

    Args:
        graph: forward and backward operations, without mutation.
        partition: where each of them runs.
        is_training: whether stages have a backward segment.
        recomputed: forward operations that the backward segment of their stage runs again when it
            needs their results.
    """
    count = partition.num_stages * (2 if is_training else 1)
    ports = [port_at(position, partition.num_stages) for position in range(count)]
    segments = {port: Segment(_name(port), graph.regions) for port in ports}
    result = SegmentedGraph(segments, {}, [])
    cutter = _Cutter(graph, partition, result, recomputed)
    for node in graph.fx.nodes:
        if node.op == "placeholder" and node in partition.port_of:
            cutter.load(node, partition.port_of[node])
        elif (
            node.op == "call_function"
            and node.target is not operator.getitem
            and not is_left_to_sum(node)
        ):
            cutter.add(node)
    for sink, node in graph.results:
        port = _home(sink, node, partition)
        for value in read_at_end(sink, node):
            cutter.fetch(value, port)
        result.results.append((sink, port, node))
    for port, segment in result.segments.items():
        segment.set_dying(_kept(result, port))
    return result


def is_left_to_sum(result: fx.Node) -> bool:
    """Returns whether no segment computes a result, since the sum takes what it is made of."""
    target = result.target
    return isinstance(target, OpOverload) and traits_of(target).is_left_to_sum


def read_at_end(sink: Sink, result: fx.Node) -> tuple[fx.Node, ...]:
    """Returns the values that are read at the end of a segment for a result."""
    if is_left_to_sum(result):
        return tuple(result.all_input_nodes)
    return () if is_added_already(sink, result) else (result,)


def is_added_already(sink: Sink, result: fx.Node) -> bool:
    """Returns whether the operation that makes a gradient adds it to the sum of the weight.

    Something else that it returns may be the gradient of another weight.
    """
    target = result.target
    adds = isinstance(target, OpOverload) and traits_of(target).adds_to_sum
    return adds and sink.kind is SinkKind.GRADIENT and result.args[-1] == sink.name


class _Cutter:
    def __init__(
        self,
        graph: Graph,
        partition: Partition,
        result: SegmentedGraph,
        recomputed: Set[fx.Node],
    ) -> None:
        self._partition = partition
        self._result = result
        self._recomputed = recomputed
        self._position = {node: index for index, node in enumerate(graph.fx.nodes)}

    def add(self, node: fx.Node) -> None:
        """Adds an operation to its segment, after fetching its inputs."""
        port = self._partition.port_of[node]
        for value in node.all_input_nodes:
            self.fetch(value, port)
        self._result.segments[port].add(node)

    def fetch(self, value: fx.Node, port: Port) -> None:
        """Makes `value` available in the segment at `port`."""
        segment = self._result.segments[port]
        if value in segment.registers:
            return
        home = self._partition.port_of.get(value)
        if home is None:
            self.load(value, port)
            return
        if self._is_recomputed(value, port):
            self._recompute(value, port)
            return
        assert home != port, f"{value.name} is used before it is computed"
        producer = self._nearest(value, home, port)
        crossing = self._result.crossings.setdefault((producer, port), Crossing(producer, port))
        crossing.nodes.append(value)
        segment.registers[value] = segment.new_register()

    def _nearest(self, value: fx.Node, home: Port, port: Port) -> Port:
        """Returns the segment that hands `value` to the one at `port`.

        What the forward of a stage was given, it stashes for its own backward.
        """
        forward = (Kind.FORWARD, port[1])
        was_given = value in self._result.segments[forward].registers
        return forward if port[0] is Kind.BACKWARD and was_given else home

    def _is_recomputed(self, value: fx.Node, port: Port) -> bool:
        """Returns whether the segment at `port` computes a value of its own stage again."""
        kind, stage = port
        return (
            kind is Kind.BACKWARD
            and operation_of(value) in self._recomputed
            and self._partition.port_of[value] == (Kind.FORWARD, stage)
        )

    def _recompute(self, value: fx.Node, port: Port) -> None:
        """Adds the operation behind `value`, and all it needs that is not there either."""
        registers = self._result.segments[port].registers
        missing, pending = set(), [value]
        while pending:
            operation = operation_of(pending.pop())
            if operation not in missing:
                missing.add(operation)
                pending += [
                    producer
                    for producer in operation.all_input_nodes
                    if producer not in registers and self._is_recomputed(producer, port)
                ]
        for operation in sorted(missing, key=self._position.__getitem__):
            for producer in operation.all_input_nodes:
                self.fetch(producer, port)
            self._result.segments[port].add(operation)

    def load(self, source: fx.Node, port: Port) -> None:
        """Loads a source in the segment at `port`."""
        segment = self._result.segments[port]
        segment.registers[source] = segment.load(source_of(source))


def _home(sink: Sink, value: fx.Node, partition: Partition) -> Port:
    """Returns where a result is taken from; a source that nothing changes is at hand anywhere.

    A variable is assigned in the stage that reads it: another one may be ahead by micro-batches.
    """
    if value not in partition.port_of and sink.kind is SinkKind.VARIABLE:
        for node, port in partition.port_of.items():
            if node.op == "placeholder" and source_of(node).name == sink.name:
                return port
    return partition.port_of.get(value, (Kind.FORWARD, 0))


def _kept(result: SegmentedGraph, port: Port) -> set[int]:
    """Returns the registers of a segment that are read after its last instruction."""
    registers = result.segments[port].registers
    crossing = [
        registers[node]
        for crossing in result.crossings.values()
        if crossing.producer == port
        for node in crossing.nodes
    ]
    stored = [
        registers[value]
        for sink, home, node in result.results
        if home == port
        for value in read_at_end(sink, node)
    ]
    return {*crossing, *stored}


def _name(port: Port) -> str:
    kind, stage = port
    return f"{kind.name.lower()} {stage}"
