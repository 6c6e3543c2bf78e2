"""Size of an IPU's program on each tile, for the model of the machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from poptorch_emu.ir.graph import SinkKind
from poptorch_emu.machine.costs.code import (
    CodeBytes,
    Family,
    OperationCode,
    code_bytes,
    used_fraction,
)
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.memory.memory_plan import Content, MemoryPlan
from poptorch_emu.plan.operations.operation_code import codes_of
from poptorch_emu.segments.segment import Segment

# Assumed bytes of code for the exchange of one tensor with the host, on a tile that holds a part of
# it; and bytes of the header and the content of a packet.
_HOST_TENSOR_BYTES, _HEADER_BYTES, _PACKET_BYTES = 30, 16, 1024

_ON_HOST = {Content.WEIGHT, Content.STATE, Content.INPUT, Content.OUTPUT}


def program_bytes(inventory: Inventory, plan: MemoryPlan, ipu: int, num_tiles: int) -> CodeBytes:
    """Returns the size of an IPU's program on each of the tiles that compute."""
    config = inventory.config
    operations = [
        code
        for port, segment in inventory.cut.segments.items()
        if inventory.ipu_of(port) == ipu
        for code in _of_segment(segment, num_tiles)
    ]
    code = code_bytes(
        [*operations, *_of_weights(inventory, ipu, num_tiles)],
        is_outlined=config.machine.is_outlined,
        outline_threshold=config.machine.outline_threshold,
        is_replicated=config.replication_factor > 1,
    )
    return replace(code, exchange=code.exchange + _host_bytes(plan, ipu, num_tiles))


def _of_segment(segment: Segment, num_tiles: int) -> Iterator[OperationCode]:
    for instruction in segment.instructions:
        yield from codes_of(instruction.node, num_tiles)
        for body in instruction.bodies:
            yield from _of_segment(body.code, num_tiles)


def _of_weights(inventory: Inventory, ipu: int, num_tiles: int) -> Iterator[OperationCode]:
    """Yields the update of each weight, and the addition to its accumulated gradient."""
    accumulates = inventory.config.gradient_accumulation > 1
    for sink, port, _ in inventory.cut.results:
        if sink.kind is not SinkKind.GRADIENT or inventory.ipu_of(port) != ipu:
            continue
        weight = inventory.variables[sink.name]
        fraction = used_fraction(weight.num_elements * weight.dtype.itemsize, num_tiles)
        yield OperationCode(
            Family.UPDATE, weight.dtype, ("update", weight.shape, weight.dtype), fraction
        )
        if accumulates:
            codelet = ("accumulate", weight.dtype)
            yield OperationCode(Family.ELEMENTWISE, codelet, (codelet, weight.shape), fraction)


def _host_bytes(plan: MemoryPlan, ipu: int, num_tiles: int) -> int:
    """Returns the bytes of exchange code on a tile for inputs, outputs, weights and state."""
    total = 0.0
    for holding in plan.select(ipu):
        if holding.content in _ON_HOST:
            packets = holding.item_bytes / num_tiles / _PACKET_BYTES
            code = _HOST_TENSOR_BYTES * used_fraction(holding.item_bytes, num_tiles)
            total += code + _HEADER_BYTES * packets
    return round(total)
