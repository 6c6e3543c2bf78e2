"""Cuts a partitioned graph into segments, and finds the values that cross between them."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from torch import fx

from poptorch_emu.ir.graph import Graph, Sink, SinkKind, operation_of, source_of
from poptorch_emu.ir.operator_traits import traits_of
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.partition import Partition
from poptorch_emu.schedule.schedule import HALVES, WHOLE, Port
from poptorch_emu.segments.segment import Segment
from poptorch_emu.segments.storage import storage_of
from poptorch_emu.segments.weight_gradients import weight_operations
from poptorch_emu.torch_versions import OpOverload


@dataclass
class SegmentedGraph:
    """All segments of one micro-batch, the values between them, and the results.

    Attributes:
        segments: segment of each port.
        transfers: values from one port to another, in order of their first use.
        results: each sink with its port and its value.
    """

    segments: dict[Port, Segment]
    transfers: dict[tuple[Port, Port], list[fx.Node]]
    results: list[tuple[Sink, Port, fx.Node]]

    @cached_property
    def storage(self) -> dict[Port, dict[int, int]]:
        """For each segment, the register that owns the memory of each register."""
        return {port: storage_of(segment) for port, segment in self.segments.items()}


def cut(
    graph: Graph,
    partition: Partition,
    is_training: bool,
    recomputed: Set[fx.Node] = frozenset(),
    kinds: Sequence[tuple[Kind, ...]] = (),
) -> SegmentedGraph:
    """Returns one segment for each stage and kind of action, empty ones included.

    Args:
        graph: forward and backward operations, without mutation.
        partition: port of each operation.
        is_training: whether stages have backward segments.
        recomputed: forward operations that run again in backward, or in a recompute segment
            before it.
        kinds: kinds of actions of each stage after its forward, as in `Schedule.kinds`; by default
            a whole backward.
    """
    kinds = kinds or ((WHOLE if is_training else ()),) * partition.num_stages
    segments = {port: Segment(segment_name(port), graph.regions) for port in _ports(kinds)}
    result = SegmentedGraph(segments, {}, [])
    homes = _Homes(graph, partition, kinds)
    cutter = _Cutter(graph, homes, result, recomputed)
    operations = []
    for node in graph.fx.nodes:
        if node.op == "placeholder" and node in partition.port_of:
            cutter.load(node, homes.of(node))
        elif (
            node.op == "call_function"
            and node.target is not operator.getitem
            and not is_left_to_sum(node)
        ):
            operations.append(node)
    # Operations that can wait come last, because they use values that the rest of their stage
    # received or computed.
    for node in sorted(operations, key=homes.waits):
        cutter.add(node)
    for sink, node in graph.results:
        port = homes.of_result(sink, node)
        for value in read_at_end(sink, node):
            cutter.fetch(value, port)
        result.results.append((sink, port, node))
    for port, segment in result.segments.items():
        segment.set_dying(_kept(result, port))
    return result


def _ports(kinds: Sequence[tuple[Kind, ...]]) -> Iterator[Port]:
    """Yields all ports in the order of one micro-batch: forward up, then backward down."""
    stages = range(len(kinds))
    yield from ((Kind.FORWARD, stage) for stage in stages)
    yield from ((kind, stage) for stage in reversed(stages) for kind in kinds[stage])


def is_left_to_sum(result: fx.Node) -> bool:
    """Returns whether the sum over micro-batches reads the operands of a result.

    In that case no segment computes the result itself.
    """
    target = result.target
    return isinstance(target, OpOverload) and traits_of(target).is_left_to_sum


def read_at_end(sink: Sink, result: fx.Node) -> tuple[fx.Node, ...]:
    """Returns the values that are read at the end of a segment for a result."""
    if is_left_to_sum(result):
        return tuple(result.all_input_nodes)
    return () if is_added_already(sink, result) else (result,)


def is_added_already(sink: Sink, result: fx.Node) -> bool:
    """Returns whether the operation that computes a gradient also adds it to the weight's sum.

    Another result of the same operation may be the gradient of another weight.
    """
    target = result.target
    adds = isinstance(target, OpOverload) and traits_of(target).adds_to_sum
    return adds and sink.kind is SinkKind.GRADIENT and result.args[-1] == sink.name


class _Homes:
    """The ports of the operations of a graph, where operations that can wait have their own."""

    def __init__(
        self, graph: Graph, partition: Partition, kinds: Sequence[tuple[Kind, ...]]
    ) -> None:
        self._partition = partition
        self.kinds = kinds
        self._are_cut = {stage for stage, own in enumerate(kinds) if own[-2:] == HALVES}
        self._waiting = weight_operations(graph, partition, self._are_cut)

    def of(self, node: fx.Node) -> Port:
        """Returns the port of an operation, or of a source that has one."""
        kind, stage = self._partition.port_of[node]
        if kind is Kind.BACKWARD and stage in self._are_cut:
            return HALVES[self.waits(node)], stage
        return kind, stage

    def waits(self, node: fx.Node) -> bool:
        """Returns whether an operation runs in the second half of its stage's backward."""
        return node in self._waiting

    def find(self, node: fx.Node) -> Port | None:
        """Returns the port of a value; `None` for a source that any segment can load."""
        return self.of(node) if node in self._partition.port_of else None

    def of_result(self, sink: Sink, value: fx.Node) -> Port:
        """Returns the port that stores a result.

        A variable is assigned in the stage that reads it, because another stage may be several
        micro-batches ahead. An unchanged source could be stored by any port.
        """
        if value not in self._partition.port_of and sink.kind is SinkKind.VARIABLE:
            for node in self._partition.port_of:
                if node.op == "placeholder" and source_of(node).name == sink.name:
                    return self.of(node)
        return self.find(value) or (Kind.FORWARD, 0)


class _Cutter:
    def __init__(
        self,
        graph: Graph,
        homes: _Homes,
        result: SegmentedGraph,
        recomputed: Set[fx.Node],
    ) -> None:
        self._homes = homes
        self._result = result
        self._recomputed = recomputed
        self._position = {node: index for index, node in enumerate(graph.fx.nodes)}

    def add(self, node: fx.Node) -> None:
        """Adds an operation to its segment after fetching its inputs."""
        port = self._homes.of(node)
        for value in node.all_input_nodes:
            self.fetch(value, port)
        self._result.segments[port].add(node)

    def fetch(self, value: fx.Node, port: Port) -> None:
        """Makes `value` available in the segment at `port`."""
        segment = self._result.segments[port]
        if value in segment.registers:
            return
        home = self._homes.find(value)
        if home is None:
            self.load(value, port)
            return
        producer = self._part_that_has(value, port) or home
        if self._is_recomputed(value, port) and producer[0] is Kind.FORWARD:
            producer = self._recompute(value, port)
            if producer == port:
                return
        assert producer != port, f"{value.name} is used before it is computed"
        self._result.transfers.setdefault((producer, port), []).append(value)
        segment.registers[value] = segment.new_register()

    def _part_that_has(self, value: fx.Node, port: Port) -> Port | None:
        """Returns the latest earlier segment of the same stage that has `value`.

        A segment hands the values that it received to the later segments of its stage.
        """
        kind, stage = port
        parts = [(earlier, stage) for earlier in (Kind.FORWARD, *self._homes.kinds[stage])]
        before = parts[: parts.index(port)]
        having = (
            each for each in reversed(before) if value in self._result.segments[each].registers
        )
        return next(having, None)

    def _is_recomputed(self, value: fx.Node, port: Port) -> bool:
        """Returns whether the stage of `port` computes `value` again for its backward."""
        kind, stage = port
        return (
            kind is not Kind.FORWARD
            and operation_of(value) in self._recomputed
            and self._homes.find(value) == (Kind.FORWARD, stage)
        )

    def _recompute(self, value: fx.Node, user: Port) -> Port:
        """Adds the operation that computes `value`, and the missing operations before it.

        Returns:
            The port that they were added to: `user`, or the recompute segment of its stage.
        """
        kind, stage = user
        has_own = Kind.RECOMPUTE in self._homes.kinds[stage]
        port = (Kind.RECOMPUTE, stage) if has_own else user
        missing, pending = set(), [value]
        while pending:
            operation = operation_of(pending.pop())
            if operation not in missing:
                missing.add(operation)
                pending += [
                    producer
                    for producer in operation.all_input_nodes
                    if self._is_recomputed(producer, port) and not self._is_at_hand(producer, port)
                ]
        for operation in sorted(missing, key=self._position.__getitem__):
            for producer in operation.all_input_nodes:
                self.fetch(producer, port)
            self._result.segments[port].add(operation)
        return port

    def _is_at_hand(self, value: fx.Node, port: Port) -> bool:
        """Returns whether a recomputed value is in the segment or an earlier one of backward."""
        if value in self._result.segments[port].registers:
            return True
        part = self._part_that_has(value, port)
        return part is not None and part[0] is not Kind.FORWARD

    def load(self, source: fx.Node, port: Port) -> None:
        """Loads a source in the segment at `port`."""
        segment = self._result.segments[port]
        segment.registers[source] = segment.load(source_of(source))


def _kept(result: SegmentedGraph, port: Port) -> set[int]:
    """Returns the registers of a segment that are read after its last instruction."""
    registers = result.segments[port].registers
    transfer = [
        registers[node]
        for (producer, _), nodes in result.transfers.items()
        if producer == port
        for node in nodes
    ]
    stored = [
        registers[value]
        for sink, home, node in result.results
        if home == port
        for value in read_at_end(sink, node)
    ]
    return {*transfer, *stored}


def segment_name(port: Port) -> str:
    """Returns the name of the segment at a port, for example "forward 0"."""
    kind, stage = port
    return f"{kind.word} {stage}"
