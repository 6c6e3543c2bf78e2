"""What is known once a model is placed and its update planned; every plan of memory reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import fx

from poptorch_emu.config import CompileConfig
from poptorch_emu.ir.graph import Graph, Sink, SinkKind, Source, SourceKind, operation_of, source_of
from poptorch_emu.plan.operations.operation_titles import titles_of
from poptorch_emu.schedule.partition import Partition
from poptorch_emu.schedule.schedule import Port, Schedule
from poptorch_emu.segments.links import LinkPlan
from poptorch_emu.segments.placement import location_of
from poptorch_emu.segments.segmented_graph import SegmentedGraph
from poptorch_emu.segments.variables import VariableInfo
from poptorch_emu.update.parts.update_plan import UpdatePlan


@dataclass(frozen=True)
class Use:
    """What a segment loads of a variable or an accumulator.

    Attributes:
        num_bytes: of the whole tensor, or of the replica's part.
        moved_bytes: that come from streaming memory: of what is put together, the replica's part.
        is_gathered: it is put together from the parts of all replicas.
    """

    num_bytes: int
    moved_bytes: int
    is_gathered: bool

    @property
    def is_fetched(self) -> bool:
        """Whether the segment computes on a copy."""
        return self.moved_bytes > 0 or self.is_gathered


@dataclass(frozen=True)
class Inventory:
    """The segments of one replica, and what they compute on.

    Attributes:
        graph: what was cut.
        cut: the segments of the micro-batches.
        links: what crosses between them.
        overlapped: inputs and outputs that cross between host and IPU while it computes.
        placed: which IPU runs what.
        schedule: how many items the links hold.
        config: where things are kept.
        update: what is cut over the replicas; in inference there is none.
        variables: of the program, by name.
    """

    graph: Graph
    cut: SegmentedGraph
    links: tuple[LinkPlan, ...]
    overlapped: frozenset[Source | Sink]
    placed: Partition
    schedule: Schedule
    config: CompileConfig
    update: UpdatePlan | None
    variables: Mapping[str, VariableInfo]

    @cached_property
    def rows(self) -> int | None:
        """The rows of a micro-batch, of the first input that has any."""
        for node in self.graph.sources:
            value = node.meta["val"]
            if source_of(node).kind is SourceKind.INPUT and value.dim():
                return int(value.shape[0])
        return None

    @cached_property
    def titles(self) -> Mapping[fx.Node, str]:
        """How people know each operation of the graph."""
        return titles_of(self.graph)

    def title(self, value: fx.Node) -> str:
        """Returns how people know a value: by the operation that computes it, or its source."""
        if value.op == "placeholder":
            return str(source_of(value))
        operation = operation_of(value)
        number = 0 if value is operation else value.args[1]
        return f"{self.titles[operation]}[{number}]" if number else self.titles[operation]

    def last_to_read(self, source: Source, stage: int) -> Port | None:
        """Returns the last segment of a stage that loads a source after its forward, if one does.

        An input waits until then, whatever else reads it before.
        """
        ports = [(kind, stage) for kind in self.schedule.kinds[stage]]
        reading = (port for port in reversed(ports) if source in self.cut.segments[port].loads)
        return next(reading, None)

    def ipu_of(self, port: Port) -> int:
        """Returns which virtual IPU runs the segment at `port`."""
        return self.placed.ipu_of_stage[port[1]]

    def updated_on(self, ipu: int) -> list[VariableInfo]:
        """Returns the weights that a virtual IPU updates."""
        return [
            self.variables[sink.name]
            for sink, port, _ in self.cut.results
            if sink.kind is SinkKind.GRADIENT and self.ipu_of(port) == ipu
        ]

    def is_remote(self, variable: VariableInfo) -> bool:
        """Whether `variable` lives in streaming memory."""
        location = location_of(self.config, variable.is_state)
        return location.is_remote(variable.num_elements)

    def held_bytes(self, variable: VariableInfo) -> int:
        """Returns what one replica holds of `variable`."""
        return self.elements_of(variable, variable.is_sharded) * variable.dtype.itemsize

    def elements_of(self, variable: VariableInfo, is_part: bool) -> int:
        """Returns the elements of a tensor like `variable`, or of one replica's part of it.

        All parts are as long; a 0-d tensor has none.
        """
        if not is_part or not variable.shape:
            return variable.num_elements
        return -(-variable.num_elements // self.config.num_sharers)

    def part_of(self, num_elements: int) -> int:
        """Returns the elements of each replica's part of an activation."""
        return -(-num_elements // self.config.replication_factor)

    def item_bytes(self, link: LinkPlan) -> int:
        """Returns the size of one item of a link whose values each have memory of their own."""
        values = [node.meta["val"] for node in link.nodes]
        return sum(
            (self.part_of(value.numel()) if link.is_shard else value.numel()) * value.itemsize
            for value in values
        )

    def use_of(self, source: Source, is_sharded: bool) -> Use | None:
        """Returns what a load of a variable or of a weight's accumulator takes.

        Args:
            source: may be anything else, which gives `None`.
            is_sharded: whether the segment computes on the replica's parts.
        """
        variable = self.variables.get(source.name)
        if variable is None or self.update is None and source.kind is SourceKind.GRADIENT:
            return None
        if source.kind is SourceKind.VARIABLE:
            is_cut, is_remote = variable.is_sharded, self.is_remote(variable)
            item_bytes = variable.dtype.itemsize
        elif source.kind is SourceKind.GRADIENT:
            is_cut = self.is_sharded_accumulator(variable.name)
            is_remote = self.is_remote_accumulator(variable)
            item_bytes = self.accumulator_type.itemsize
        else:
            return None
        used = self.elements_of(variable, is_sharded) * item_bytes
        is_gathered = is_cut and (not is_sharded or not variable.shape)
        own = self.elements_of(variable, is_part=True) * item_bytes if is_gathered else used
        return Use(used, own if is_remote else 0, is_gathered)

    def is_sharded_accumulator(self, weight: str) -> bool:
        """Whether each replica holds a part of the accumulated gradient."""
        return weight in self._sharded_accumulators

    def is_remote_accumulator(self, weight: VariableInfo) -> bool:
        """Whether the accumulated gradient lives in streaming memory."""
        return self.config.locations.accumulator.is_remote(weight.num_elements)

    def accumulator_bytes(self, weight: VariableInfo) -> int:
        """Returns what one replica holds of the accumulated gradient."""
        is_part = self.is_sharded_accumulator(weight.name)
        return self.elements_of(weight, is_part) * self.accumulator_type.itemsize

    @property
    def accumulator_type(self) -> torch.dtype:
        """What gradients are accumulated in."""
        assert self.update is not None, "gradients are accumulated for an update"
        return self.update.accumulator_type

    @cached_property
    def _sharded_accumulators(self) -> frozenset[str]:
        return frozenset(self.update.sharded_accumulators if self.update is not None else ())
