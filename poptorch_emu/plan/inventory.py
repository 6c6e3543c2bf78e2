"""Facts about a placed model and its planned update, the input of every memory plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import fx

from poptorch_emu.config import CompileConfig
from poptorch_emu.enums import OverlapMode
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
    """Size and traffic of one load of a variable or an accumulator by a segment.

    Attributes:
        num_bytes: bytes of the tensor that the segment uses: the whole tensor or the replica's
            part.
        moved_bytes: bytes read from streaming memory; of a gathered tensor the replica's part.
        is_gathered: whether the tensor is put together from the parts of all replicas.
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
    """The segments of one replica, and everything that they compute on.

    Attributes:
        graph: the graph that was cut into segments.
        cut: the segments of the micro-batches.
        links: links that carry values between the segments.
        overlapped: inputs and outputs that are transferred while the IPU computes, with the loop
            that they overlap with.
        placed: assignment of stages and operations to IPUs.
        schedule: the schedule of one window, which determines the depths of the links.
        config: the configuration of the compilation, for example the locations of tensors.
        update: plan of the weight update; None in inference.
        variables: variables of the program, by name.
    """

    graph: Graph
    cut: SegmentedGraph
    links: tuple[LinkPlan, ...]
    overlapped: Mapping[Source | Sink, OverlapMode]
    placed: Partition
    schedule: Schedule
    config: CompileConfig
    update: UpdatePlan | None
    variables: Mapping[str, VariableInfo]

    @cached_property
    def rows(self) -> int | None:
        """Rows of a micro-batch: length of the first axis of the first input that has axes."""
        for node in self.graph.sources:
            value = node.meta["val"]
            if source_of(node).kind is SourceKind.INPUT and value.dim():
                return int(value.shape[0])
        return None

    @cached_property
    def titles(self) -> Mapping[fx.Node, str]:
        """Title of each operation of the graph, for reports."""
        return titles_of(self.graph)

    def title(self, value: fx.Node) -> str:
        """Returns the title of a value, from the operation that computes it or from its source."""
        if value.op == "placeholder":
            return str(source_of(value))
        operation = operation_of(value)
        number = 0 if value is operation else value.args[1]
        return f"{self.titles[operation]}[{number}]" if number else self.titles[operation]

    def last_to_read(self, source: Source, stage: int) -> Port | None:
        """Returns the last segment of a stage that reads a source after forward, or None.

        An input is stashed until that segment runs, also if other segments read it earlier.
        """
        ports = [(kind, stage) for kind in self.schedule.kinds[stage]]
        reading = (port for port in reversed(ports) if source in self.cut.segments[port].loads)
        return next(reading, None)

    def ipu_of(self, port: Port) -> int:
        """Returns the index of the virtual IPU that runs the segment at `port`."""
        return self.placed.ipu_of_stage[port[1]]

    def updated_on(self, ipu: int) -> list[VariableInfo]:
        """Returns the weights that a virtual IPU updates."""
        return [
            self.variables[sink.name]
            for sink, port, _ in self.cut.results
            if sink.kind is SinkKind.GRADIENT and self.ipu_of(port) == ipu
        ]

    def is_remote(self, variable: VariableInfo) -> bool:
        """Whether `variable` is in streaming memory."""
        location = location_of(self.config, variable.is_state)
        return location.is_remote(variable.num_elements)

    def held_bytes(self, variable: VariableInfo) -> int:
        """Returns the bytes of `variable` that one replica holds."""
        return self.elements_of(variable, variable.is_sharded) * variable.dtype.itemsize

    def elements_of(self, variable: VariableInfo, is_part: bool) -> int:
        """Returns the number of elements of `variable`, or of one replica's part of it.

        All replicas hold parts of the same length. A 0-d tensor is never divided.
        """
        if not is_part or not variable.shape:
            return variable.num_elements
        return -(-variable.num_elements // self.config.num_sharers)

    def part_of(self, num_elements: int) -> int:
        """Returns the number of elements in each replica's part of an activation."""
        return -(-num_elements // self.config.replication_factor)

    def item_bytes(self, link: LinkPlan) -> int:
        """Returns the bytes of one item of a link, if none of its values share memory."""
        values = [node.meta["val"] for node in link.nodes]
        return sum(
            (self.part_of(value.numel()) if link.is_shard else value.numel()) * value.itemsize
            for value in values
        )

    def use_of(self, source: Source, is_sharded: bool) -> Use | None:
        """Returns the size of a load of a variable or of an accumulated gradient.

        Args:
            source: the loaded source. For a source of another kind the result is None.
            is_sharded: whether the segment computes on the replica's part of each tensor.
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
        """Whether each replica holds only a part of the weight's accumulated gradient."""
        return weight in self._sharded_accumulators

    def is_remote_accumulator(self, weight: VariableInfo) -> bool:
        """Whether the accumulated gradient of `weight` is in streaming memory."""
        return self.config.locations.accumulator.is_remote(weight.num_elements)

    def accumulator_bytes(self, weight: VariableInfo) -> int:
        """Returns the bytes of a weight's accumulated gradient that one replica holds."""
        is_part = self.is_sharded_accumulator(weight.name)
        return self.elements_of(weight, is_part) * self.accumulator_type.itemsize

    @property
    def accumulator_type(self) -> torch.dtype:
        """Data type of accumulated gradients."""
        assert self.update is not None, "gradients are accumulated for an update"
        return self.update.accumulator_type

    @cached_property
    def _sharded_accumulators(self) -> frozenset[str]:
        return frozenset(self.update.sharded_accumulators if self.update is not None else ())
