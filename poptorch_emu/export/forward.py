"""The forward operations of a compiled graph, divided into stages, and the values between stages.

A value that a later stage needs passes through all stages between, because PyTorch's pipelining
sends only from one stage to the next. It is sent once, even if several stages and operations read
it. Inputs, weights and constants are never sent: each stage has its own. Values computed from
buffers and constants alone, such as tables of rotary embeddings, are not sent either: each stage
that reads them computes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from torch import fx

from poptorch_emu.compile.executable import Executable
from poptorch_emu.export.rewriting import random_name
from poptorch_emu.ir.graph import Graph, SinkKind, SourceKind, operation_of, record_of, source_of
from poptorch_emu.ir.record import Phase


@dataclass(frozen=True)
class ForwardStages:
    """The forward operations of every stage.

    Attributes:
        graph: all operations, including backward.
        nodes: forward operations of each stage, and the selections of their results, in order.
        wires: values that each stage but the last sends to the next stage.
        outputs: results of the last stage: the loss first, if the model trains.
        loss: value that is minimised; `None` if the model does not train.
    """

    graph: Graph
    nodes: tuple[tuple[fx.Node, ...], ...]
    wires: tuple[tuple[fx.Node, ...], ...]
    outputs: tuple[fx.Node, ...]
    loss: fx.Node | None

    @property
    def num_stages(self) -> int:
        """The number of stages."""
        return len(self.nodes)

    def received(self, stage: int) -> tuple[fx.Node, ...]:
        """Returns the values that `stage` receives from the stage before."""
        return self.wires[stage - 1] if stage else ()

    def returned(self, stage: int) -> tuple[fx.Node, ...]:
        """Returns the values that `stage` sends to the next stage, or returns if it is the last."""
        return self.outputs if stage == self.num_stages - 1 else self.wires[stage]

    def sources_of(self, stage: int) -> list[fx.Node]:
        """Returns the inputs, variables and constants that `stage` reads."""
        used = {value for node in self.nodes[stage] for value in node.all_input_nodes}
        if stage == self.num_stages - 1:
            used.update(self.outputs)
        return [node for node in self.graph.sources if node in used]

    def holders_of_trained(self) -> dict[str, list[int]]:
        """Returns the stages that read each variable with a gradient, in order, by its name."""
        trained = {s.name for s, _ in self.graph.results if s.kind is SinkKind.GRADIENT}
        holders: dict[str, list[int]] = {}
        for stage in range(self.num_stages):
            for source in map(source_of, self.sources_of(stage)):
                if source.kind is SourceKind.VARIABLE and source.name in trained:
                    holders.setdefault(source.name, []).append(stage)
        return holders

    def inputs_of(self, stage: int) -> list[int]:
        """Returns the numbers of the model's inputs that `stage` reads."""
        sources = map(source_of, self.sources_of(stage))
        return [int(source.name) for source in sources if source.kind is SourceKind.INPUT]


def forward_stages(executable: Executable, parameters: Set[str]) -> ForwardStages:
    """Returns the forward of a compiled program.

    Args:
        executable: the program.
        parameters: names of the model's parameters; its other variables are buffers.
    """
    graph, partition = executable.graph, executable.partition
    stage_of = {
        node: partition.port_of[node][1]
        for node in graph.fx.nodes
        if node.op == "call_function" and is_forward(node)
    }
    loss = _loss(stage_of) if executable.config.is_training else None
    results = [node for sink, node in graph.results if sink.kind is SinkKind.OUTPUT]
    outputs = (loss,) if loss is not None else tuple(results)
    needed = _needed(outputs)
    own: list[list[fx.Node]] = [[] for _ in range(partition.num_stages)]
    for node, stage in stage_of.items():
        if node in needed:
            own[stage].append(node)
    fixed = _fixed(graph, stage_of, parameters)
    stages = [_with_fixed(nodes, fixed, stage_of) for nodes in own]
    return ForwardStages(
        graph,
        tuple(map(tuple, stages)),
        tuple(_wires(stages, outputs, fixed)),
        outputs,
        loss,
    )


def is_forward(node: fx.Node) -> bool:
    """Returns whether an operation, or a selection of its results, belongs to forward."""
    return record_of(operation_of(node)).phase is Phase.FORWARD


def _loss(nodes: Iterable[fx.Node]) -> fx.Node:
    """Returns the loss; if its operation has several results, the first one."""
    (operation,) = [
        node for node in nodes if operation_of(node) is node and record_of(node).is_loss
    ]
    selections = [user for user in operation.users if operation_of(user) is operation]
    return next((user for user in selections if user.args[1] == 0), operation)


def _needed(outputs: Sequence[fx.Node]) -> set[fx.Node]:
    """Returns all nodes on which `outputs` depend, and `outputs` themselves."""
    needed: set[fx.Node] = set()
    pending = list(outputs)
    while pending:
        node = pending.pop()
        if node not in needed:
            needed.add(node)
            pending += node.all_input_nodes
    return needed


def _fixed(graph: Graph, nodes: Iterable[fx.Node], parameters: Set[str]) -> set[fx.Node]:
    """Returns values computed from buffers and constants alone, equal for all micro-batches.

    Args:
        graph: graph with all sources.
        nodes: forward operations in order.
        parameters: names of variables to exclude, because values computed from them may be costly.
    """
    fixed = {
        node
        for node in graph.sources
        if (source := source_of(node)).kind is SourceKind.CONSTANT
        or (source.kind is SourceKind.VARIABLE and source.name not in parameters)
    }
    for node in nodes:
        if fixed.issuperset(node.all_input_nodes) and random_name(operation_of(node)) is None:
            fixed.add(node)
    return fixed


def _with_fixed(
    nodes: Sequence[fx.Node], fixed: Set[fx.Node], order: Iterable[fx.Node]
) -> list[fx.Node]:
    """Returns the operations of a stage and those that compute the fixed values that it reads."""
    own = set(nodes)
    pending = [value for node in nodes for value in node.all_input_nodes]
    while pending:
        value = pending.pop()
        if value in fixed and value.op == "call_function" and value not in own:
            own.add(value)
            pending += value.all_input_nodes
    return [node for node in order if node in own]


def _wires(
    stages: Sequence[Sequence[fx.Node]], outputs: Sequence[fx.Node], fixed: Set[fx.Node]
) -> list[tuple[fx.Node, ...]]:
    """Returns the values that each stage but the last sends: computed so far and read later."""
    last_use = {node: len(stages) - 1 for node in outputs}
    for stage, nodes in enumerate(stages):
        for node in nodes:
            for value in node.all_input_nodes:
                last_use[value] = max(stage, last_use.get(value, 0))
    wires = []
    for stage in range(len(stages) - 1):
        made = dict.fromkeys(node for nodes in stages[: stage + 1] for node in nodes)
        wires.append(tuple(n for n in made if last_use.get(n, 0) > stage and n not in fixed))
    return wires
