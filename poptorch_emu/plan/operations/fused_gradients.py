"""Gradients that PyTorch computes as several operations, and the machine as one.

Source: PopART has one operation for the gradient of a swish, and one for the gradient of a negative
log-likelihood loss of a log-softmax. PopLibs has a vertex for the first. For the second it has a
vertex that also computes the loss; that one is assumed for the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import fx

from poptorch_emu.ir.graph import Graph, record_of
from poptorch_emu.ir.record import Phase

aten = torch.ops.aten


def fused_gradients(graph: Graph) -> Mapping[fx.Node, tuple[str, ...]]:
    """Returns the names of the elementwise programs of operations that are fused with others.

    The last of the fused operations stands for all of them; the others have no programs.
    """
    found: dict[fx.Node, tuple[str, ...]] = {}
    for node in graph.operations:
        if record_of(node).phase is Phase.BACKWARD:
            found.update(_of_swish(node))
            found.update(_of_loss(node))
    for region in graph.regions.values():
        found.update(fused_gradients(region))
    return found


def _of_swish(last: fx.Node) -> Iterator[tuple[fx.Node, tuple[str, ...]]]:
    """Yields the operations of g * (s * (x * (1 - s) + 1)), where s is the sigmoid of x."""
    for slope in _operands(last, aten.mul.Tensor):
        for sigmoid in _operands(slope, aten.sigmoid.default, aten.mul.Tensor):
            for plus_one in _operands(slope, aten.add.Scalar, aten.mul.Tensor):
                for scaled in _operands(plus_one, aten.mul.Tensor, aten.add.Scalar):
                    for rest in _operands(scaled, aten.sub.Tensor, aten.mul.Tensor):
                        if sigmoid.args[0] in scaled.args and rest.args[1] is sigmoid:
                            ones = _made_ones(rest.args[0])
                            parts = [sigmoid, *ones, rest, scaled, plus_one, slope]
                            yield from ((part, ()) for part in parts if _is_inner(part, parts))
                            yield last, ("swish_grad",)


def _made_ones(value: object) -> list[fx.Node]:
    """Returns the operations that create a tensor of ones."""
    found = []
    while isinstance(value, fx.Node) and value.target in (
        aten.fill.Scalar,
        aten.empty_like.default,
    ):
        found.append(value)
        value = value.args[0]
    return found


def _is_inner(part: fx.Node, parts: list[fx.Node]) -> bool:
    """Returns whether no operation outside the fused gradient uses a part."""
    return part is parts[-1] and len(part.users) == 1 or set(part.users) <= set(parts)


def _of_loss(last: fx.Node) -> Iterator[tuple[fx.Node, tuple[str, ...]]]:
    """Yields the gradient of a log-softmax, and the gradient of its loss, which runs before."""
    if last.target is aten._log_softmax_backward_data.default:
        for inner in _operands(last, aten.nll_loss_backward.default, last.target):
            if len(inner.users) == 1:
                yield inner, ()
                yield last, ("cross_entropy_grad",)


def _operands(node: fx.Node, wanted: object, own: object = aten.mul.Tensor) -> Iterator[fx.Node]:
    """Yields the operands that the operator `wanted` computes, if `node` is a call of `own`."""
    if node.target is own:
        yield from (value for value in node.all_input_nodes if value.target is wanted)
