"""Cuts a partitioned graph into segments and finds what crosses between them."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field

from torch import fx

from poptorch_emu.compile.segment import Segment
from poptorch_emu.ir.graph import Graph, Sink, source_of
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.partition import Partition, port_at
from poptorch_emu.schedule.schedule import Port


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


def cut(graph: Graph, partition: Partition, is_training: bool) -> SegmentedGraph:
    """Returns one segment for each stage and kind of action, empty ones included."""
    count = partition.num_stages * (2 if is_training else 1)
    ports = [port_at(position, partition.num_stages) for position in range(count)]
    result = SegmentedGraph({port: Segment(_name(port), graph.regions) for port in ports}, {}, [])
    cutter = _Cutter(partition, result)
    for node in graph.fx.nodes:
        if node.op == "placeholder" and node in partition.port_of:
            cutter.load(node, partition.port_of[node])
        elif node.op == "call_function" and node.target is not operator.getitem:
            cutter.add(node)
    for sink, node in graph.results:
        port = partition.port_of.get(node, (Kind.FORWARD, 0))
        cutter.fetch(node, port)
        result.results.append((sink, port, node))
    for port, segment in result.segments.items():
        segment.set_dying(_kept(result, port))
    return result


class _Cutter:
    def __init__(self, partition: Partition, result: SegmentedGraph) -> None:
        self._partition = partition
        self._result = result

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
        assert home != port, f"{value.name} is used before it is computed"
        key = (home, port)
        crossing = self._result.crossings.setdefault(key, Crossing(home, port))
        crossing.nodes.append(value)
        segment.registers[value] = segment.new_register()

    def load(self, source: fx.Node, port: Port) -> None:
        """Loads a source in the segment at `port`."""
        segment = self._result.segments[port]
        segment.registers[source] = segment.load(source_of(source))


def _kept(result: SegmentedGraph, port: Port) -> set[int]:
    """Returns the registers of a segment that are read after its last instruction."""
    registers = result.segments[port].registers
    crossing = [
        registers[node]
        for crossing in result.crossings.values()
        if crossing.producer == port
        for node in crossing.nodes
    ]
    stored = [registers[node] for _, home, node in result.results if home == port]
    return {*crossing, *stored}


def _name(port: Port) -> str:
    kind, stage = port
    return f"{kind.name.lower()} {stage}"
