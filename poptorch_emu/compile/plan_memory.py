"""Finds out what each IPU holds, from what is known once a model is compiled."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from poptorch_emu.compile.executable import VariableInfo
from poptorch_emu.compile.memory_plan import Content, Holding, MemoryPlan, Store
from poptorch_emu.compile.placement import is_stash, location_of, parts_of
from poptorch_emu.compile.segment import Segment
from poptorch_emu.compile.segments import SegmentedGraph
from poptorch_emu.compile.update_lowering import UpdatePlan
from poptorch_emu.compile.workspace import num_bytes, storage_of, workspace_bytes
from poptorch_emu.config import CompileConfig, TensorLocation
from poptorch_emu.ir.graph import Graph, SinkKind, Source, SourceKind, source_of
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.partition import Partition
from poptorch_emu.schedule.schedule import Port, Schedule, link_depth
from poptorch_emu.trace.lamb_rule import NUM_SQUARES
from poptorch_emu.update.loss_scale import FACTOR, STATISTICS


@dataclass(frozen=True)
class _Planner:
    graph: Graph
    cut: SegmentedGraph
    placed: Partition
    schedule: Schedule
    config: CompileConfig
    update: UpdatePlan | None
    variables: Mapping[str, VariableInfo]

    def is_shard(self, variable: VariableInfo) -> bool:
        """Whether each replica holds a part of `variable`."""
        return self.update is not None and variable.name in self.update.sharded_variables

    def held_bytes(self, variable: VariableInfo) -> int:
        """Returns what one replica holds of `variable`."""
        elements = variable.num_elements
        if self.is_shard(variable):
            elements = self.part_of(elements)
        return elements * variable.dtype.itemsize

    def part_of(self, num_elements: int) -> int:
        """Returns the elements of one part of a tensor that is cut; all parts are as long."""
        return -(-num_elements // self.config.replication_factor)


def plan_memory(
    graph: Graph,
    cut: SegmentedGraph,
    placed: Partition,
    schedule: Schedule,
    config: CompileConfig,
    update: UpdatePlan | None,
    variables: Mapping[str, VariableInfo],
) -> MemoryPlan:
    """Returns the plan of one replica: a variable is held by its first user's IPU.

    Args:
        graph: what was cut.
        cut: the segments of the micro-batches.
        placed: which IPU runs what.
        schedule: how many items the links hold.
        config: where things are kept.
        update: what is cut over the replicas; in inference there is none.
        variables: of the program, by name.
    """
    planner = _Planner(graph, cut, placed, schedule, config, update, variables)
    holdings = [
        *_variables(planner),
        *_accumulators(planner),
        *_sources(planner),
        *_outputs(planner),
        *_crossings(planner),
        *_workspaces(planner),
    ]
    return MemoryPlan(placed.ipu_ids, tuple(sorted(holdings, key=_order)))


def _order(holding: Holding) -> tuple[int, int, str]:
    return holding.ipu, list(Content).index(holding.content), holding.name


def _ports_that_load(planner: _Planner, source: Source) -> list[Port]:
    return [port for port, segment in planner.cut.segments.items() if source in segment.loads]


def _ipu_of(planner: _Planner, port: Port) -> int:
    return planner.placed.ipu_of_stage[port[1]]


def _variables(planner: _Planner) -> Iterator[Holding]:
    gradient_ipu = {
        sink.name: _ipu_of(planner, port)
        for sink, port, _ in planner.cut.results
        if sink.kind is SinkKind.GRADIENT
    }
    for variable in planner.variables.values():
        content = Content.STATE if variable.is_state else Content.WEIGHT
        weight = variable.name.partition("___")[2]
        if variable.is_state and weight in gradient_ipu:
            ipu = gradient_ipu[weight]
        else:
            name = FACTOR if variable.name == STATISTICS else variable.name
            ports = _ports_that_load(planner, Source(SourceKind.VARIABLE, name))
            ipu = _ipu_of(planner, ports[0]) if ports else 0
        location = location_of(planner.config, variable.is_state)
        yield Holding(
            ipu,
            content,
            variable.name,
            planner.held_bytes(variable),
            store=_store(location, variable.num_elements),
            is_shard=planner.is_shard(variable),
        )


def _accumulators(planner: _Planner) -> Iterator[Holding]:
    update = planner.update
    if update is None:
        return
    for sink, port, node in planner.cut.results:
        if sink.kind is SinkKind.GRADIENT:
            elements = node.meta["val"].numel()
            is_shard = sink.name in update.sharded_accumulators
            held = planner.part_of(elements) if is_shard else elements
            yield Holding(
                _ipu_of(planner, port),
                Content.ACCUMULATOR,
                sink.name,
                held * update.accumulator_type.itemsize,
                store=_store(planner.config.locations.accumulator, elements),
                is_shard=is_shard,
            )
    for ipu, parts in enumerate(update.parts):
        for name in itertools.chain.from_iterable(part.sums.values() for part in parts):
            yield Holding(ipu, Content.ACCUMULATOR, name, NUM_SQUARES * torch.float32.itemsize)


def _sources(planner: _Planner) -> Iterator[Holding]:
    """Yields constants, one for each IPU that uses them, and inputs with their stashes."""
    sizes = {source_of(node): num_bytes(node.meta["val"]) for node in planner.graph.sources}
    for source, size in sizes.items():
        ports = _ports_that_load(planner, source)
        if source.kind is SourceKind.CONSTANT:
            for ipu in sorted({_ipu_of(planner, port) for port in ports}):
                yield Holding(ipu, Content.CONSTANT, source.name, size)
        elif source.kind is SourceKind.INPUT:
            for port in ports:
                yield _input(planner, source, port, size)


def _input(planner: _Planner, source: Source, port: Port, size: int) -> Holding:
    """Returns an input where forward reads it, or its stash where backward does."""
    ipu, name = _ipu_of(planner, port), f"input {source.name}"
    if port[0] is Kind.FORWARD:
        return Holding(ipu, Content.INPUT, name, size, planner.config.machine.buffering_depth)
    depth = link_depth(planner.schedule, (Kind.FORWARD, port[1]), port)
    return Holding(ipu, Content.STASH, name, size, depth)


def _outputs(planner: _Planner) -> Iterator[Holding]:
    for sink, port, node in planner.cut.results:
        if sink.kind in (SinkKind.OUTPUT, SinkKind.INPUT):
            size = num_bytes(node.meta["val"])
            yield Holding(_ipu_of(planner, port), Content.OUTPUT, str(sink), size)


def _crossings(planner: _Planner) -> Iterator[Holding]:
    """Yields stashes (from forward to backward) and channels, at the end that takes them out."""
    for (producer, consumer), crossing in planner.cut.crossings.items():
        depth = link_depth(planner.schedule, producer, consumer)
        for nodes, is_remote in parts_of(planner.config, crossing):
            yield Holding(
                _ipu_of(planner, consumer),
                Content.STASH if is_stash(crossing) else Content.CHANNEL,
                f"{_name(producer)} to {_name(consumer)}",
                item_bytes(planner.cut.segments[producer], nodes),
                depth,
                Store.REMOTE if is_remote else Store.ON_CHIP,
            )


def item_bytes(producer: Segment, nodes: Sequence[fx.Node]) -> int:
    """Returns the size of one item of a link; values that share memory count once.

    A view of something that stays on the IPU (a weight, say) costs nothing.
    """
    storage, loaded = storage_of(producer), set(producer.loads.values())
    largest: dict[int, int] = {}
    for node in nodes:
        root = storage.get(producer.registers[node], producer.registers[node])
        if root not in loaded:
            largest[root] = max(largest.get(root, 0), num_bytes(node.meta["val"]))
    return sum(largest.values())


def _workspaces(planner: _Planner) -> Iterator[Holding]:
    """Yields for each IPU the largest workspace of its segments; only one runs at a time."""
    peaks = {ipu: [0, _update_bytes(planner, ipu)] for ipu in range(planner.schedule.num_ipus)}
    for port, segment in planner.cut.segments.items():
        peaks[_ipu_of(planner, port)].append(workspace_bytes(segment))
    for ipu, of_segments in peaks.items():
        yield Holding(ipu, Content.WORKSPACE, "largest segment", max(of_segments))


def _update_bytes(planner: _Planner, ipu: int) -> int:
    """Returns what an update needs: new values beside the old ones until all of them are there.

    The update of a tensor that is whole makes a whole one, of its parts if replicas share the work.
    """
    updated = {
        sink.name
        for sink, port, _ in planner.cut.results
        if sink.kind is SinkKind.GRADIENT and _ipu_of(planner, port) == ipu
    }
    return sum(
        planner.held_bytes(variable)
        for variable in planner.variables.values()
        if variable.name.rpartition("___")[2] in updated
    )


def _store(location: TensorLocation, num_elements: int) -> Store:
    if location.is_remote(num_elements):
        return Store.REMOTE
    return Store.IO_TILES if location.uses_io_tiles_to_store else Store.ON_CHIP


def _name(port: Port) -> str:
    return f"{port[0].name.lower()} {port[1]}"
