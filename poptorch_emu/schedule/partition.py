"""From the blocks of a recorded graph to stages, and from stages to virtual IPUs.

A new stage begins wherever the IPU or the phase changes along the forward operations, starting on
IPU 0; stages on one IPU that follow each other in one phase are one. Backward runs on the stage of
its forward operation.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

from torch import fx

from poptorch_emu.errors import compiler_error
from poptorch_emu.ir.graph import Graph, SinkKind, SourceKind, record_of, source_of
from poptorch_emu.ir.record import BlockPlace, Phase
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.schedule import Port
from poptorch_emu.troubleshooting import Topic


@dataclass(frozen=True)
class Partition:
    """Which stage runs which operation.

    Attributes:
        ipu_ids: the user's number of each virtual IPU, ascending.
        ipu_of_stage: for each forward stage the index of its virtual IPU.
        places: the block with which each stage begins.
        port_of: the stage and kind of action of each operation, and of each source that the graph
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

    def rank(self, port: Port) -> int:
        """Returns the position of a stage in one micro-batch: forward up, then backward down."""
        return rank(port, self.num_stages)


def rank(port: Port, num_stages: int) -> int:
    """Returns the position of `port` among the 2 * num_stages stages of one micro-batch."""
    kind, stage = port
    return stage if kind is Kind.FORWARD else 2 * num_stages - 1 - stage


def port_at(position: int, num_stages: int) -> Port:
    """Returns the stage at `position`; the inverse of `rank`."""
    if position < num_stages:
        return Kind.FORWARD, position
    return Kind.BACKWARD, 2 * num_stages - 1 - position


def partition(graph: Graph, is_pipelined: bool) -> Partition:
    """Assigns every operation of `graph` to a stage.

    Args:
        graph: forward and backward operations, without mutation.
        is_pipelined: whether stages run at the same time, so that none may be entered again.

    Raises:
        Error: stages of a pipeline go backwards.
    """
    places, stage_of = _forward_stages(graph, is_pipelined)
    num_stages = len(places)
    ranks: dict[fx.Node, int] = {}
    for node in graph.fx.nodes:
        if node.op != "call_function":
            continue
        inputs = [ranks[producer] for producer in node.all_input_nodes if producer in ranks]
        if node.target is operator.getitem:
            ranks[node] = inputs[0]
        else:
            ranks[node] = max([_own_rank(node, stage_of, num_stages), *inputs])
    _place_written_sources(graph, ranks)
    ids = sorted({place.ipu for place in places})
    return Partition(
        tuple(ids),
        tuple(ids.index(place.ipu) for place in places),
        tuple(places),
        {node: port_at(position, num_stages) for node, position in ranks.items()},
    )


def _forward_stages(
    graph: Graph, is_pipelined: bool
) -> tuple[list[BlockPlace], dict[BlockPlace | None, int]]:
    """Returns the first block of each stage, and the last stage of each block."""
    places = [BlockPlace("", stage=0, ipu=0)]
    stage_of: dict[BlockPlace | None, int] = {}
    highest = 0
    for node in graph.operations:
        record = record_of(node)
        if record.phase is not Phase.FORWARD:
            continue
        place = record.place
        if is_pipelined and place.stage < highest:
            raise compiler_error(
                f"Block '{place.block_id}' at {record.source} is in stage {place.stage}, but stage "
                f"{highest} has begun: the stages of a pipeline cannot go backwards. Use "
                "poptorch.AutoStage.AutoIncrement, or give the block a stage of its own; "
                f"{Topic.STAGE_ORDER}"
            )
        highest = max(highest, place.stage)
        if (place.ipu, place.phase) != (places[-1].ipu, places[-1].phase):
            places.append(place)
        stage_of[place] = len(places) - 1
        node.meta["forward_stage"] = len(places) - 1
    return places, stage_of


def _own_rank(node: fx.Node, stage_of: dict[BlockPlace | None, int], num_stages: int) -> int:
    record = record_of(node)
    if record.phase is Phase.FORWARD:
        stage: int = node.meta["forward_stage"]
        return stage
    stage = num_stages - 1 if record.is_anonymous else stage_of.get(record.place, num_stages - 1)
    return rank((Kind.BACKWARD, stage), num_stages)


def _place_written_sources(graph: Graph, ranks: dict[fx.Node, int]) -> None:
    """A variable that the graph changes is read once for each micro-batch, by its first user.

    One that nobody reads is where it is written.
    """
    written = {sink.name: node for sink, node in graph.results if sink.kind is SinkKind.VARIABLE}
    for node in graph.sources:
        source = source_of(node)
        if source.kind is SourceKind.VARIABLE and source.name in written:
            users = [ranks[user] for user in node.users if user in ranks]
            ranks[node] = min(users, default=ranks.get(written[source.name], 0))
