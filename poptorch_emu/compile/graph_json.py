"""Converts the compiled graph to plain values for JSON, with operations in the order of stages.

Values that wait from a stage's forward to its backward have operations that stash and restore them,
as on the real machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import fx

from poptorch_emu.compile.executable import Executable
from poptorch_emu.ir.graph import Graph, SourceKind, record_of
from poptorch_emu.ir.record import NodeRecord
from poptorch_emu.ir.text import type_text
from poptorch_emu.passes.anchors import operation_name, tensor_names
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.schedule import Port, link_depth
from poptorch_emu.segments.placement import is_stash
from poptorch_emu.segments.recomputation import recomputation_of, recomputed_operations
from poptorch_emu.segments.segmented_graph import SegmentedGraph, cut

MAIN = "maingraph"

Operation = dict[str, Any]


def to_plain(executable: Executable) -> dict[str, list[Operation]]:
    """Returns the operations of the main graph and of each body of a loop or branch, by name."""
    regions = {
        name: [_operation(node) for node in region.operations]
        for name, region in executable.graph.regions.items()
    }
    return {MAIN: list(_main_graph(executable)), **regions}


def _main_graph(executable: Executable) -> Iterator[Operation]:
    graph, placed, config = executable.graph, executable.partition, executable.config
    recomputed = recomputed_operations(graph, placed, recomputation_of(config, placed))
    kinds = executable.schedule.kinds
    segments = cut(graph, placed, config.is_training, recomputed, kinds)
    stashed = _stashed(executable, segments)
    for port, segment in sorted(segments.segments.items(), key=lambda each: placed.rank(each[0])):
        for (_, consumer), values in stashed.items():
            if consumer == port:
                yield from _moves("Restore", "Restored___", values, graph)
        for instruction in segment.instructions:
            if instruction.node is not None:
                yield _operation(instruction.node)
        for (producer, _), values in stashed.items():
            if producer == port:
                yield from _moves("Stash", "Stashed___", values, graph)


def _stashed(
    executable: Executable, segments: SegmentedGraph
) -> dict[tuple[Port, Port], list[fx.Node]]:
    """Returns the values stashed for several micro-batches, by (producer, consumer)."""
    found: dict[tuple[Port, Port], list[fx.Node]] = {}
    inputs = {node.meta["source"]: node for node in executable.graph.sources}
    for consumer, segment in segments.segments.items():
        for producer in segments.segments:
            if producer[1] != consumer[1] or not is_stash(producer, consumer):
                continue
            values = segments.transfers.get((producer, consumer), [])
            if producer[0] is Kind.FORWARD:
                read = [source for source in segment.loads if source.kind is SourceKind.INPUT]
                values = [*(inputs[source] for source in read), *values]
            if values and link_depth(executable.schedule, producer, consumer) > 1:
                found[producer, consumer] = values
    return found


def _moves(kind: str, prefix: str, values: list[fx.Node], graph: Graph) -> Iterator[Operation]:
    names = {node: name for name, node in tensor_names(graph).items()}
    for value in values:
        tensor = names.get(value, value.name)
        plain = _plain(f"{prefix}{tensor}", kind, record_of(value))
        yield {**plain, "inputs": [value.name], "output": _type_of(value)}


def _operation(node: fx.Node) -> Operation:
    name = operation_name(node)
    return {
        **_plain(name, name.rpartition("/")[2], record_of(node)),
        "operator": str(node.target),
        "value": node.name,
        "inputs": [value.name for value in node.all_input_nodes],
        "arguments": str((node.args, node.kwargs)),
        "output": _type_of(node),
    }


def _plain(name: str, kind: str, record: NodeRecord) -> Operation:
    return {
        "name": name,
        "type": kind,
        "phase": record.phase.value,
        "block": record.place.block_id,
        "stage": record.place.stage,
        "ipu": record.place.ipu,
        "module": record.module,
        "source": record.source,
    }


def _type_of(node: fx.Node) -> Any:
    value = node.meta["val"]
    is_several = isinstance(value, (list, tuple))
    return [type_text(item) for item in value] if is_several else type_text(value)
