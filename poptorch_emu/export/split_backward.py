"""Test whether PyTorch may split the backward of a stage into gradients of inputs and of weights.

PyTorch computes the gradients of inputs first. It records the gradients at the operations that
combine weights with values that depend on received values, and continues to the weights later.
Therefore it loses the gradient of a weight that reaches a result of the stage without such an
operation, for example a table of relative positions that later stages read. Such stages compute the
whole backward at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set

from torch import fx

from poptorch_emu.export.forward import ForwardStages
from poptorch_emu.ir.graph import SourceKind, source_of


def may_be_split(stages: ForwardStages, stage: int, with_gradient: Set[fx.Node]) -> bool:
    """Returns whether PyTorch finds all gradients of a stage if it computes them in two parts.

    Args:
        stages: all stages.
        stage: index of a stage; the first has no gradients of inputs and is never split.
        with_gradient: values between stages that have a gradient.
    """
    if stage == 0:
        return True
    users: dict[fx.Node, list[fx.Node]] = defaultdict(list)
    dependent = {value for value in stages.received(stage) if value in with_gradient}
    for node in stages.nodes[stage]:
        for value in node.all_input_nodes:
            users[value].append(node)
        if not dependent.isdisjoint(node.all_input_nodes):
            dependent.add(node)
    trained = stages.holders_of_trained()
    pending = [
        source
        for source in stages.sources_of(stage)
        if source_of(source).kind is SourceKind.VARIABLE and source_of(source).name in trained
    ]
    of_weights_alone: set[fx.Node] = set()
    while pending:
        value = pending.pop()
        if value not in of_weights_alone and value not in dependent:
            of_weights_alone.add(value)
            pending += users[value]
    return of_weights_alone.isdisjoint(stages.returned(stage))
