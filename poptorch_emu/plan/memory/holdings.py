"""Computes the memory plan of the engine's IPUs from segments, links and variables."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch

from poptorch_emu.config import TensorLocation
from poptorch_emu.ir.graph import Sink, SinkKind, Source, SourceKind, source_of
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.memory.ipu_workspace import workspaces
from poptorch_emu.plan.memory.memory_plan import Content, Holding, MemoryPlan, Store
from poptorch_emu.plan.memory.traffic import movements
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.schedule import Port, link_depth
from poptorch_emu.segments.links import LinkPlan
from poptorch_emu.segments.placement import location_of
from poptorch_emu.segments.segmented_graph import SegmentedGraph
from poptorch_emu.update.formulas.loss_scale import FACTOR, STATISTICS
from poptorch_emu.update.recorded import NUM_SQUARES

_NUMBER_OF = {content: number for number, content in enumerate(Content)}


def plan_memory(
    inventory: Inventory, known_workspaces: Sequence[Holding] | None = None
) -> MemoryPlan:
    """Returns the memory plan of one replica. The first IPU that uses a variable holds it.

    Args:
        inventory: the segments, and everything that they compute on.
        known_workspaces: workspaces of the same segments and update; None to compute them.
    """
    holdings = [
        *_variables(inventory),
        *_accumulators(inventory),
        *_sources(inventory),
        *_outputs(inventory),
        *_links(inventory),
        *(workspaces(inventory) if known_workspaces is None else known_workspaces),
    ]
    return MemoryPlan(
        inventory.placed.ipu_ids,
        tuple(sorted(holdings, key=_order)),
        tuple(movements(inventory)),
    )


def _order(holding: Holding) -> tuple[int, int, str]:
    return holding.ipu, _NUMBER_OF[holding.content], holding.name


def _ports_that_load(inventory: Inventory, source: Source) -> list[Port]:
    return [port for port, segment in inventory.cut.segments.items() if source in segment.loads]


def _variables(inventory: Inventory) -> Iterator[Holding]:
    gradient_ipu = {
        sink.name: inventory.ipu_of(port)
        for sink, port, _ in inventory.cut.results
        if sink.kind is SinkKind.GRADIENT
    }
    update = inventory.update
    by_ipu = enumerate(update.averages if update is not None else ())
    averaging_ipu = {each.average: ipu for ipu, mine in by_ipu for each in mine}
    for variable in inventory.variables.values():
        content = Content.STATE if variable.is_state else Content.WEIGHT
        weight = variable.name.partition("___")[2]
        if variable.is_state and weight in gradient_ipu:
            ipu = gradient_ipu[weight]
        else:
            name = FACTOR if variable.name == STATISTICS else variable.name
            ports = _ports_that_load(inventory, Source(SourceKind.VARIABLE, name))
            ipu = inventory.ipu_of(ports[0]) if ports else averaging_ipu.get(variable.name, 0)
        location = location_of(inventory.config, variable.is_state)
        yield Holding(
            ipu,
            content,
            variable.name,
            inventory.held_bytes(variable),
            store=_store(location, variable.num_elements),
            is_shard=variable.is_sharded,
        )


def _accumulators(inventory: Inventory) -> Iterator[Holding]:
    update = inventory.update
    if update is None:
        return
    for sink, port, _ in inventory.cut.results:
        if sink.kind is SinkKind.GRADIENT:
            weight = inventory.variables[sink.name]
            yield Holding(
                inventory.ipu_of(port),
                Content.ACCUMULATOR,
                sink.name,
                inventory.accumulator_bytes(weight),
                store=_store(inventory.config.locations.accumulator, weight.num_elements),
                is_shard=inventory.is_sharded_accumulator(weight.name),
            )
    for ipu, parts in enumerate(update.parts):
        for name in itertools.chain.from_iterable(part.sums.values() for part in parts):
            yield Holding(ipu, Content.ACCUMULATOR, name, NUM_SQUARES * torch.float32.itemsize)


def _sources(inventory: Inventory) -> Iterator[Holding]:
    """Yields constants, once for each IPU that uses them, and inputs with their stashes."""
    sizes = {source_of(node): node.meta["val"].nbytes for node in inventory.graph.sources}
    for source, size in sizes.items():
        ports = _ports_that_load(inventory, source)
        if source.kind is SourceKind.CONSTANT:
            for ipu in sorted({inventory.ipu_of(port) for port in ports}):
                yield Holding(ipu, Content.CONSTANT, source.name, size)
        elif source.kind is SourceKind.INPUT:
            for port in ports:
                is_stash = port == inventory.last_to_read(source, port[1])
                if port[0] is Kind.FORWARD or is_stash:
                    yield _input(inventory, source, port, size)


def _input(inventory: Inventory, source: Source, port: Port, size: int) -> Holding:
    """Returns the holding of an input at its forward segment, or of its stash at a backward one."""
    ipu, name = inventory.ipu_of(port), f"input {source.name}"
    if port[0] is Kind.FORWARD:
        copies = inventory.config.machine.buffering_depth
        return Holding(ipu, Content.INPUT, name, size, *_stream(inventory, source, copies))
    depth = link_depth(inventory.schedule, (Kind.FORWARD, port[1]), port)
    return Holding(ipu, Content.STASH, name, size, depth)


def _stream(inventory: Inventory, end: Source | Sink, copies: int) -> tuple[int, Store]:
    """Returns the number of copies that a host stream holds, and their place.

    An overlapped stream has one more copy, on the I/O tiles, which moves while the IPU computes.
    Source: stream buffers in the memory model of the IPU.
    """
    is_overlapped = end in inventory.overlapped
    return (copies + 1, Store.IO_TILES) if is_overlapped else (copies, Store.ON_CHIP)


def _outputs(inventory: Inventory) -> Iterator[Holding]:
    for sink, port, node in inventory.cut.results:
        if sink.kind in (SinkKind.OUTPUT, SinkKind.INPUT):
            size = node.meta["val"].nbytes
            stream = _stream(inventory, sink, 1)
            yield Holding(inventory.ipu_of(port), Content.OUTPUT, str(sink), size, *stream)


def _links(inventory: Inventory) -> Iterator[Holding]:
    """Yields stashes (from forward to backward) and channels, on the IPU that reads the items."""
    segments = inventory.cut.segments
    for link in inventory.links:
        producer, consumer = segments[link.producer], segments[link.consumer]
        has_own_memory = link.is_remote or link.is_shard
        yield Holding(
            inventory.ipu_of(link.consumer),
            Content.STASH if link.is_stash else Content.CHANNEL,
            f"{producer.name} to {consumer.name}",
            inventory.item_bytes(link) if has_own_memory else shared_bytes(inventory.cut, link),
            link.depth,
            _store_of_link(inventory, link),
            link.is_shard,
        )


def shared_bytes(cut: SegmentedGraph, link: LinkPlan) -> int:
    """Returns the bytes of one item of a link. Values that share memory count once.

    A view of a tensor that stays on the IPU anyway, for example of a weight, takes no bytes.
    """
    producer = cut.segments[link.producer]
    storage, loaded = cut.storage[link.producer], set(producer.loads.values())
    largest: dict[int, int] = {}
    for node in link.nodes:
        root = storage.get(producer.registers[node], producer.registers[node])
        if root not in loaded:
            largest[root] = max(largest.get(root, 0), node.meta["val"].nbytes)
    return sum(largest.values())


def _store_of_link(inventory: Inventory, link: LinkPlan) -> Store:
    """Returns the place where items wait. On chip, a channel is in the memory of its consumer."""
    if link.is_remote:
        return Store.REMOTE
    on_io_tiles = inventory.config.locations.activation.uses_io_tiles_to_store
    return Store.IO_TILES if on_io_tiles and link.is_stash else Store.ON_CHIP


def _store(location: TensorLocation, num_elements: int) -> Store:
    if location.is_remote(num_elements):
        return Store.REMOTE
    return Store.IO_TILES if location.uses_io_tiles_to_store else Store.ON_CHIP
