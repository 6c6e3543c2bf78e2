"""Which stages PyTorch may cut the backward of, into gradients of inputs and of weights.

It computes the gradients of inputs first and notes what arrives at the operations where weights
meet values that depend on what the stage received; from these it goes on to the weights later. So
it loses the gradient of a weight that reaches what the stage returns without such a meeting, as a
table of relative positions does that later stages read. Such stages do the whole backward at once.
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
        stages: all of them.
        stage: which one; the first has no gradients of inputs, and is never cut.
        with_gradient: the values between stages through which gradients flow back.
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
