"""Assigns the operations of a recorded graph to stages, and stages to virtual IPUs.

A new stage begins wherever the IPU or the phase changes along the forward operations, starting on
IPU 0. Consecutive stages on one IPU in one phase are merged, unless the schedule is a table. Each
backward operation runs on the stage of its forward operation. A pipeline runs the user's stages in
the order of their numbers, whatever the order of the lines in `forward`. So `forward` may enter a
stage again, with values of earlier stages.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import fx

from poptorch_emu.config import StrategyConfig, StrategyKind
from poptorch_emu.enums import AutoStage
from poptorch_emu.errors import Error, compiler_error
from poptorch_emu.ir.graph import (
    Graph,
    SinkKind,
    SourceKind,
    operation_of,
    record_of,
    source_of,
)
from poptorch_emu.ir.record import BlockPlace, NodeRecord, Phase
from poptorch_emu.passes.anchors import tensor_names
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.schedule import Port
from poptorch_emu.troubleshooting import Topic


@dataclass(frozen=True)
class Partition:
    """The stage of every operation.

    Attributes:
        ipu_ids: the user's number of each virtual IPU, ascending.
        ipu_of_stage: index of the virtual IPU of each forward stage.
        places: first block of each stage.
        port_of: stage and kind of action of each operation, and of each source that the graph
            itself changes.
    """

    ipu_ids: tuple[int, ...]
    ipu_of_stage: tuple[int, ...]
    places: tuple[BlockPlace, ...]
    port_of: dict[fx.Node, Port]

    @property
    def num_stages(self) -> int:
        """The number of forward stages."""
        return len(self.ipu_of_stage)

    def blocks_of_stages(self, graph: Graph) -> tuple[tuple[str, ...], ...]:
        """Returns the blocks of the forward operations of each stage, in order."""
        found: list[dict[str, None]] = [{} for _ in self.ipu_of_stage]
        for node in graph.operations:
            kind, stage = self.port_of[node]
            if kind is Kind.FORWARD:
                found[stage].setdefault(record_of(node).place.block_id)
        return tuple(map(tuple, found))

    def rank(self, port: Port) -> tuple[int, Kind]:
        """Returns the sort key of a port within one micro-batch: forward up, then backward down."""
        return rank(port, self.num_stages), port[0]


def rank(port: Port, num_stages: int) -> int:
    """Returns the position of `port` among the 2 * num_stages stages of one micro-batch."""
    kind, stage = port
    return stage if kind is Kind.FORWARD else 2 * num_stages - 1 - stage


def port_at(position: int, num_stages: int) -> Port:
    """Returns the stage at `position`; the inverse of `rank`."""
    if position < num_stages:
        return Kind.FORWARD, position
    return Kind.BACKWARD, 2 * num_stages - 1 - position


def partition(graph: Graph, strategy: StrategyConfig) -> Partition:
    """Assigns every operation of `graph` to a stage.

    Args:
        graph: forward and backward operations, without mutation.
        strategy: execution strategy, which decides how blocks become stages.

    Raises:
        Error: a value goes back to an earlier stage of a pipeline.
    """
    places, stage_of = _forward_stages(graph, strategy)
    num_stages = len(places)
    ids = sorted({place.ipu for place in places})
    return Partition(
        tuple(ids),
        tuple(ids.index(place.ipu) for place in places),
        tuple(places),
        _ports(graph, lambda node: _own_rank(node, stage_of, num_stages), num_stages, strategy),
    )


def partition_by_stages(
    graph: Graph,
    stage_of: Mapping[fx.Node, int],
    ipu_of_stage: tuple[int, ...],
    strategy: StrategyConfig,
) -> Partition:
    """Assigns every operation of `graph` to a stage, whatever the blocks say.

    Args:
        graph: forward and backward operations, without mutation.
        stage_of: stage of each operation, forward or backward.
        ipu_of_stage: index of the virtual IPU of each stage.
        strategy: execution strategy, which error messages name.

    Raises:
        Error: a value goes back to an earlier stage.
    """
    num_stages = len(ipu_of_stage)
    firsts = {stage_of[node]: record_of(node).place for node in reversed(graph.operations)}
    places = (replace(firsts[s], stage=s, ipu=ipu) for s, ipu in enumerate(ipu_of_stage))

    def own_rank(node: fx.Node) -> int:
        record = record_of(node)
        if record.phase is Phase.FORWARD:
            return rank((Kind.FORWARD, stage_of[node]), num_stages)
        return _backward_rank(record, stage_of[node], num_stages)

    ids = tuple(sorted(set(ipu_of_stage)))
    return Partition(
        ids, ipu_of_stage, tuple(places), _ports(graph, own_rank, num_stages, strategy)
    )


def _ports(
    graph: Graph, own_rank: Callable[[fx.Node], int], num_stages: int, strategy: StrategyConfig
) -> dict[fx.Node, Port]:
    """Returns the port of every operation: its own, or a later one if its inputs come later."""
    ranks: dict[fx.Node, int] = {}
    for node in graph.fx.nodes:
        if node.op != "call_function":
            continue
        inputs = {value: ranks[value] for value in node.all_input_nodes if value in ranks}
        latest = max(inputs.values(), default=0)
        if node.target is operator.getitem:
            ranks[node] = latest
            continue
        own = own_rank(node)
        if own < latest < num_stages:
            raise _goes_backwards(graph, max(inputs, key=inputs.__getitem__), node, strategy)
        ranks[node] = max(own, latest)
    _place_written_sources(graph, ranks)
    return {node: port_at(position, num_stages) for node, position in ranks.items()}


def _forward_stages(
    graph: Graph, strategy: StrategyConfig
) -> tuple[list[BlockPlace], dict[BlockPlace | None, int]]:
    """Returns the first block of each stage, and the last stage of each block."""
    places = [BlockPlace("", stage=0, ipu=0)]
    stage_of: dict[BlockPlace | None, int] = {}
    operations = [node for node in graph.operations if record_of(node).phase is Phase.FORWARD]
    if strategy.kind is StrategyKind.PIPELINED:
        operations.sort(key=lambda node: record_of(node).place.stage)
    for node in operations:
        place = record_of(node).place
        if _begins_stage(place, places[-1], strategy):
            places.append(place)
        elif not places[-1].block_id and strategy.table is not None:
            places[-1] = place
        stage_of[place] = len(places) - 1
        node.meta["forward_stage"] = len(places) - 1
    return places, stage_of


def _begins_stage(place: BlockPlace, present: BlockPlace, strategy: StrategyConfig) -> bool:
    """Returns whether a block begins a new stage after the block `present`.

    In a table two consecutive stages may be on the same IPU. Operations before the first block
    belong to its stage if it is on IPU 0.
    """
    if (place.ipu, place.phase) != (present.ipu, present.phase):
        return True
    return strategy.table is not None and bool(present.block_id) and place.stage != present.stage


def _goes_backwards(graph: Graph, value: fx.Node, user: fx.Node, strategy: StrategyConfig) -> Error:
    """Returns the error for a `value` that an operation of an earlier stage uses."""
    made, used = record_of(operation_of(value)), record_of(user)
    names = {node: name for name, node in tensor_names(graph).items()}
    return compiler_error(
        f"'{names.get(value, value.name)}' is made at {_where(made)} and used at {_where(used)}: "
        "a value of a pipeline cannot go backwards, to a stage before its own. Move the line that "
        f"uses it into a block of stage {made.place.stage} or later; or "
        f"{_way_out(graph, made.place, used.place, strategy)}; {Topic.STAGE_ORDER}"
    )


def _where(record: NodeRecord) -> str:
    place = record.place
    return f"{record.source} in block '{place.block_id}' (stage {place.stage}, IPU {place.ipu})"


def _way_out(graph: Graph, made: BlockPlace, used: BlockPlace, strategy: StrategyConfig) -> str:
    """Returns the changes that give the user of a value a stage after that of the value."""
    begun = list(dict.fromkeys(record_of(node).place.block_id for node in graph.operations))
    steps = []
    if begun.index(used.block_id) < begun.index(made.block_id):
        steps.append("open a block with an id of its own there")
    if strategy.auto_stage is AutoStage.SameAsIpu:
        steps.append("use poptorch.AutoStage.AutoIncrement, which gives each block its own stage")
    elif not strategy.is_automatic:
        steps.append(f"list its block in a stage after that of '{made.block_id}'")
    return ", and ".join(steps)


def _own_rank(node: fx.Node, stage_of: dict[BlockPlace | None, int], num_stages: int) -> int:
    record = record_of(node)
    if record.phase is Phase.FORWARD:
        stage: int = node.meta["forward_stage"]
        return stage
    return _backward_rank(record, stage_of.get(record.place, num_stages - 1), num_stages)


def _backward_rank(record: NodeRecord, stage: int, num_stages: int) -> int:
    """Returns the rank of a backward operation; the earliest one if it has no forward operation."""
    return rank((Kind.BACKWARD, num_stages - 1 if record.is_anonymous else stage), num_stages)


def _place_written_sources(graph: Graph, ranks: dict[fx.Node, int]) -> None:
    """Assigns each variable that the graph changes to the port of its first reader.

    A variable that no operation reads belongs to the port that writes it.
    """
    written = {sink.name: node for sink, node in graph.results if sink.kind is SinkKind.VARIABLE}
    for node in graph.sources:
        source = source_of(node)
        if source.kind is SourceKind.VARIABLE and source.name in written:
            users = [ranks[user] for user in node.users if user in ranks]
            ranks[node] = min(users, default=ranks.get(written[source.name], 0))
