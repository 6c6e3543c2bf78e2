"""Traffic between the IPUs of a replica and streaming memory in one window."""

from __future__ import annotations

from collections.abc import Iterator

from poptorch_emu.ir.graph import SinkKind
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.memory.memory_plan import Movement
from poptorch_emu.schedule.schedule import Port
from poptorch_emu.segments.segment import Segment
from poptorch_emu.update.parts.update_parts import Part


def movements(inventory: Inventory) -> Iterator[Movement]:
    """Yields the traffic of each segment that has any: forward, backward, update."""
    found = [_of_micro_batches(inventory, port) for port in inventory.cut.segments]
    if inventory.update is not None:
        found += [_of_update(inventory, part) for parts in inventory.update.parts for part in parts]
    yield from (moved for moved in found if moved.loaded_bytes or moved.stored_bytes)


def _of_micro_batches(inventory: Inventory, port: Port) -> Movement:
    """Returns the traffic of a segment in all micro-batches; the first reads no accumulator."""
    segment = inventory.cut.segments[port]
    loaded = _loaded_bytes(inventory, segment, is_sharded=False)
    stored = 0
    for link in inventory.links:
        if link.is_remote:
            stored += inventory.item_bytes(link) if link.producer == port else 0
            loaded += inventory.item_bytes(link) if link.consumer == port else 0
    added = 0
    for sink, home, _ in inventory.cut.results:
        if home != port or sink.name not in inventory.variables:
            continue
        variable = inventory.variables[sink.name]
        if sink.kind is SinkKind.VARIABLE and inventory.is_remote(variable):
            stored += inventory.held_bytes(variable)
        elif sink.kind is SinkKind.GRADIENT and inventory.is_remote_accumulator(variable):
            added += inventory.accumulator_bytes(variable)
    count = inventory.schedule.num_micro_batches
    return Movement(segment.name, count * loaded + (count - 1) * added, count * (stored + added))


def _of_update(inventory: Inventory, part: Part) -> Movement:
    """Returns the traffic of a part of an update on one replica that runs it."""
    stored = 0
    for name in part.stores.values():
        variable = inventory.variables[name]
        if inventory.is_remote(variable):
            elements = inventory.elements_of(variable, part.is_sharded)
            stored += elements * variable.dtype.itemsize
    loaded = _loaded_bytes(inventory, part.code, is_sharded=part.is_sharded)
    return Movement(part.code.name, loaded, stored)


def _loaded_bytes(inventory: Inventory, segment: Segment, *, is_sharded: bool) -> int:
    uses = (inventory.use_of(source, is_sharded) for source in segment.loads)
    return sum(use.moved_bytes for use in uses if use is not None)
