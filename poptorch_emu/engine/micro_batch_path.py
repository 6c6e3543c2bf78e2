"""The path of micro-batches: the order in which one worker takes them through all segments.

The lists of the schedule fix the order of actions on each virtual IPU. A worker that stays with one
micro-batch finds its tensors in its own cache. There is a path only if the results of both orders
are equal, which the engine checks (`csrc/program/check_path.cpp`).
"""

from __future__ import annotations

import torch

from poptorch_emu import _C
from poptorch_emu.enums import OutputMode
from poptorch_emu.ir.exchange import is_collective
from poptorch_emu.ir.graph import Sink, SinkKind, Source, SourceKind
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.schedule.schedule import Port
from poptorch_emu.segments.segmented_graph import is_added_already


def path_of(inventory: Inventory) -> dict[Port, _C.Turns]:
    """Returns the segments of the path in order, with the turns of micro-batches in each one.

    The path is empty if only the lists define the order: a window has one run of each segment, a
    segment waits for other replicas or is seen outside, replicas share the values of a link, links
    form a cycle, or two segments use a variable that one of them writes.
    """
    cut = inventory.cut
    follows_lists = (
        inventory.schedule.num_micro_batches == 1
        or any(link.is_shard for link in inventory.links)
        or any(inventory.is_sharded_accumulator(sink.name) for sink, _, _ in cut.results)
        or any(is_collective(i.node) for code in cut.segments.values() for i in code.instructions)
        or any(code.is_seen_outside for code in cut.segments.values())
        or any(_is_shared(sink, port, inventory) for sink, port, _ in cut.results)
    )
    order = [] if follows_lists else _in_order_of_links(inventory)
    is_whole = len(order) == len(cut.segments)
    return {port: _turns(port, inventory) for port in order} if is_whole else {}


def _is_shared(sink: Sink, port: Port, inventory: Inventory) -> bool:
    """Returns whether a segment other than that at `port` reads the variable of a sink."""
    source = Source(SourceKind.VARIABLE, sink.name)
    others = (code for other, code in inventory.cut.segments.items() if other != port)
    return sink.kind is SinkKind.VARIABLE and any(source in code.loads for code in others)


def _in_order_of_links(inventory: Inventory) -> list[Port]:
    """Returns each port after those that send to it; ports behind a cycle of links are left out."""
    senders: dict[Port, set[Port]] = {port: set() for port in inventory.cut.segments}
    for link in inventory.links:
        senders[link.consumer].add(link.producer)
    order: dict[Port, None] = {}
    while ready := [
        port for port in senders if port not in order and senders[port] <= order.keys()
    ]:
        order[ready[0]] = None
    return list(order)


def _turns(port: Port, inventory: Inventory) -> _C.Turns:
    results = [(sink, node) for sink, at, node in inventory.cut.results if at == port]
    stored = [sink for sink, node in results if not is_added_already(sink, node)]
    if any(sink.kind is SinkKind.VARIABLE for sink in stored):
        return _C.Turns.ONE_BY_ONE
    are_free = all(_is_free(sink, inventory) for sink in stored)
    return _C.Turns.ANY_ORDER if are_free else _C.Turns.IN_TURN


def _is_free(sink: Sink, inventory: Inventory) -> bool:
    """Returns whether micro-batches may store a result in any order.

    Outputs have fixed positions unless they are added up, and most sums restore the order.
    """
    config = inventory.config
    if sink.kind is SinkKind.GRADIENT:
        is_remote = inventory.is_remote_accumulator(inventory.variables[sink.name])
        is_float = inventory.accumulator_type == torch.float32
        return is_float and not (is_remote or config.checks_floating_point)
    modes = {anchor.short_name: anchor.output_mode for anchor in config.anchors}
    if sink.kind is SinkKind.OUTPUT:
        return config.output_mode is not OutputMode.Sum
    return sink.kind is SinkKind.INPUT or modes[sink.name] is not OutputMode.Sum
