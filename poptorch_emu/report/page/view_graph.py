"""The operations of a report as columns, and its stages with the tensors between them."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from poptorch_emu.ir.graph import SinkKind, operation_of, record_of
from poptorch_emu.machine.costs.code import Family
from poptorch_emu.machine.costs.product import least_tile_cycles
from poptorch_emu.machine.ipu import IPU_OF_VERSION
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.operations.operation_family import family_of
from poptorch_emu.plan.operations.operation_products import products_of
from poptorch_emu.plan.operations.operation_titles import accumulation_title
from poptorch_emu.plan.time.time_plan import OperationTime, TimePlan
from poptorch_emu.report.page.page_content import PageContent
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.schedule import Port
from poptorch_emu.segments.segment import Segment


def operation_columns(plan: TimePlan, inventory: Inventory | None) -> dict[str, list[Any]]:
    """Returns the table of operations, in the order of execution.

    Cycles are those of one run of an operation's segment; `None` if its family is not modelled.
    """
    nodes, blocks = _nodes(inventory), _blocks(inventory)
    rows = [
        {
            **_row(operation, nodes.get(operation.name), blocks.get(operation.name)),
            "utilisation": _utilisation(operation, nodes.get(operation.name), inventory),
        }
        for operation in plan.all_operations
    ]
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def _nodes(inventory: Inventory | None) -> dict[str, fx.Node]:
    if inventory is None:
        return {}
    segments = inventory.cut.segments.values()
    nodes = (step.node for segment in segments for step in segment.instructions)
    return {inventory.titles[node]: node for node in nodes}


def _blocks(inventory: Inventory | None) -> dict[str, str]:
    """Returns each operation's block; a sum of gradients is in the block that computes them."""
    blocks = {name: _block(node) for name, node in _nodes(inventory).items()}
    for sink, _, node in inventory.cut.results if inventory else ():
        if sink.kind is SinkKind.GRADIENT:
            blocks[accumulation_title(sink.name)] = _block(operation_of(node))
    return blocks


def _row(operation: OperationTime, node: fx.Node | None, block: str | None) -> dict[str, Any]:
    return {
        "name": operation.name,
        "operator": operation.operator,
        "segment": operation.segment,
        "block": block,
        "module": operation.module or "the model",
        "family": operation.family,
        "ipu": operation.ipu,
        "cycles": round(operation.cycles) if operation.is_known else None,
        "bytes": None if node is None else _moved_bytes(node),
        "is_recomputed": operation.is_recomputed,
        "source": operation.source or None,
    }


def _utilisation(
    operation: OperationTime, node: fx.Node | None, inventory: Inventory | None
) -> float | None:
    """Returns the share of the multiply-accumulate units' rate that an operation reaches.

    The share is `None` if the operation is not a product, or if its cost is not known.
    """
    if node is None or inventory is None or not operation.is_known or not operation.cycles:
        return None
    machine = inventory.config.machine
    is_convolution = family_of(node) is Family.CONVOLUTION
    has_half_sums = machine.has_half_convolutions if is_convolution else machine.has_half_products
    least = sum(map(least_tile_cycles, products_of(node, has_half_sums)))
    num_tiles = IPU_OF_VERSION[machine.version].num_tiles - machine.num_io_tiles
    return least / num_tiles / operation.cycles if least else None


def _block(node: fx.Node) -> str:
    return record_of(node).place.block_id or "before the first block"


def _moved_bytes(node: fx.Node) -> int:
    """Returns the bytes that an operation reads and writes."""
    values = [value.meta.get("val") for value in (*node.all_input_nodes, node)]
    return sum(map(_bytes, values))


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    return sum(map(_bytes, value)) if isinstance(value, list | tuple) else 0


def graph_view(content: PageContent) -> dict[str, Any]:
    """Returns the stages in both directions, and the tensors that cross in a micro-batch."""
    inventory = content.inventory
    if inventory is None:
        return {"stages": [], "edges": []}
    ports = [
        (port, segment)
        for port, segment in inventory.cut.segments.items()
        if port[0] is not Kind.UPDATE
    ]
    return {
        "stages": [_stage(content.time, inventory, port, segment) for port, segment in ports],
        "edges": _edges(inventory),
    }


def _stage(
    plan: TimePlan | None, inventory: Inventory, port: Port, segment: Segment
) -> dict[str, Any]:
    kind, number = port
    direction = kind.word
    nodes = [instruction.node for instruction in segment.instructions]
    blocks = dict.fromkeys(map(_block, nodes))
    time = plan.stages[number].of(kind) if plan else None
    return {
        "name": segment.name,
        "direction": direction,
        "stage": number,
        "ipu": inventory.placed.ipu_ids[inventory.ipu_of(port)],
        "blocks": list(blocks),
        "cycles": None if time is None else round(time.cycles),
        "num_operations": len(nodes),
    }


def _edges(inventory: Inventory) -> list[dict[str, Any]]:
    edges: dict[tuple[str, str], dict[str, Any]] = {}
    names = {port: segment.name for port, segment in inventory.cut.segments.items()}
    for link in inventory.links:
        ends = names[link.producer], names[link.consumer]
        empty = {"from": ends[0], "to": ends[1], "bytes": 0, "tensors": []}
        edge = edges.setdefault(ends, empty)
        edge["bytes"] += inventory.item_bytes(link)
        edge["tensors"] += (_tensor(inventory, node) for node in link.nodes)
    return list(edges.values())


def _tensor(inventory: Inventory, node: fx.Node) -> dict[str, Any]:
    value = node.meta["val"]
    return {
        "name": inventory.title(node),
        "shape": str(list(value.shape)),
        "bytes": _bytes(value),
    }
