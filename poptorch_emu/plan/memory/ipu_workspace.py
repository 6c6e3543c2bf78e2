"""Workspace of each IPU: results of operations, and copies of tensors that are stored elsewhere.

The sizes are computed from the same segments that are lowered, including those of the update.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from poptorch_emu.ir.graph import SinkKind
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.memory.memory_plan import Content, Holding
from poptorch_emu.plan.memory.segment_workspace import (
    inlined_bytes,
    register_bytes,
    workspace_bytes,
)
from poptorch_emu.schedule.schedule import Port
from poptorch_emu.segments.phases import port_numbers
from poptorch_emu.segments.segment import Segment
from poptorch_emu.update.parts.update_parts import Part


def workspaces(inventory: Inventory) -> Iterator[Holding]:
    """Yields the largest workspace of each IPU, because only one of its segments runs at a time."""
    parts = [] if inventory.update is None else itertools.chain(*inventory.update.parts)
    sizes = {part.code.name: _part_bytes(inventory, part) for part in parts}
    for ipu in range(inventory.schedule.num_ipus):
        peaks = [*_micro_batch_peaks(inventory, ipu), *_update_peaks(inventory, ipu, sizes)]
        yield Holding(ipu, Content.WORKSPACE, "largest segment", max(peaks, default=0))


def _micro_batch_peaks(inventory: Inventory, ipu: int) -> Iterator[int]:
    """Yields the peak bytes of each segment, with the copies for the next one where they overlap.

    Between phases with consecutive numbers there is no time, so the tensors of the second phase
    arrive while the first one runs.
    """
    ports = sorted(
        (port for port in inventory.cut.segments if inventory.ipu_of(port) == ipu),
        key=inventory.placed.rank,
    )
    numbers = port_numbers(inventory.placed, inventory.config)
    fetched = {port: _fetched_at(inventory, port) for port in ports}
    for port, following in zip(ports, [*ports[1:], None], strict=True):
        segment = inventory.cut.segments[port]
        at_end = _accumulation_bytes(inventory, port)
        peak = workspace_bytes(segment, register_bytes(segment), fetched[port], at_end)
        if following is not None and numbers and numbers[following] == numbers[port] + 1:
            peak += sum(fetched[following].values())
        yield peak


def _fetched_at(inventory: Inventory, port: Port) -> dict[int, int]:
    """Returns the bytes of all copies that exist when a segment begins, by register."""
    segment = inventory.cut.segments[port]
    fetched = _fetched_by_loads(inventory, segment, is_sharded=False)
    for link in inventory.links:
        if link.consumer == port and (link.is_remote or link.is_shard):
            fetched |= {segment.registers[n]: n.meta["val"].nbytes for n in link.nodes}
    return fetched


def _fetched_by_loads(
    inventory: Inventory, segment: Segment, *, is_sharded: bool
) -> dict[int, int]:
    fetched = {}
    for source, register in segment.loads.items():
        use = inventory.use_of(source, is_sharded)
        if use is not None and use.is_fetched:
            fetched[register] = use.num_bytes
    return fetched


def _accumulation_bytes(inventory: Inventory, port: Port) -> int:
    """Returns the bytes of the largest accumulator that is fetched from streaming memory."""
    sizes = [0]
    for sink, home, _ in inventory.cut.results:
        if sink.kind is SinkKind.GRADIENT and home == port:
            weight = inventory.variables[sink.name]
            if inventory.is_remote_accumulator(weight):
                sizes.append(inventory.accumulator_bytes(weight))
    return max(sizes)


def _update_peaks(
    inventory: Inventory, ipu: int, sizes: Mapping[str, dict[int, int]]
) -> Iterator[int]:
    """Yields the peak bytes of each part of an update, with the old values that are kept meanwhile.

    The old values stay beside the new ones until all parts of all IPUs are complete.

    Args:
        inventory: the placed model. Without an update there are no peaks.
        ipu: index of the virtual IPU that runs the parts.
        sizes: bytes of each register of each part, by the part's name.
    """
    if inventory.update is None:
        return
    replaced = 0
    for part in inventory.update.parts[ipu]:
        code = part.code
        fetched = _fetched_by_loads(inventory, code, is_sharded=part.is_sharded)
        for link in inventory.update.links:
            if link.consumer == code.name:
                sent = zip(link.sources, link.targets, strict=True)
                fetched |= {target: sizes[link.producer].get(source, 0) for source, target in sent}
        at_end = _gathered_bytes(inventory, part)
        yield replaced + workspace_bytes(code, sizes[code.name], fetched, at_end)
        stored = [inventory.variables[name] for name in part.stores.values()]
        replaced += sum(inventory.held_bytes(v) for v in stored if not inventory.is_remote(v))


def _part_bytes(inventory: Inventory, part: Part) -> dict[int, int]:
    """Returns the bytes of each register of a part of an update."""
    elements = {}
    for source, register in part.code.loads.items():
        variable = inventory.variables.get(source.name)
        if variable is not None:
            elements[register] = inventory.elements_of(variable, part.is_sharded)
    return inlined_bytes(part.code, elements)


def _gathered_bytes(inventory: Inventory, part: Part) -> int:
    """Returns the bytes of the tensors that replicas gather after each has updated its part."""
    stored = [inventory.variables[name] for name in part.stores.values()]
    return sum(
        inventory.held_bytes(variable)
        for variable in stored
        if part.is_sharded and variable.shape and not variable.is_sharded
    )
