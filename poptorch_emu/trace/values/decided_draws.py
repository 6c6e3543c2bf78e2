"""Comparisons of random numbers with bounds that no draw can cross: `torch.rand([]) < 0.0`.

For example, a layer drop with probability 0 makes such a comparison. No first draw decides other
comparisons, because every later call would repeat that draw and train another model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import fx, ops

from poptorch_emu.ir.mutation import is_mutating, memory_of, written_memory

aten = ops.aten

# Operators that draw numbers in [0, 1).
_UNIFORM = frozenset(
    {aten.rand.default, aten.rand.generator, aten.rand_like.default, aten.rand_like.generator}
)
# Operators that keep the number in a tensor. Casts are absent, because they may round up to 1.
_SAME_NUMBER = frozenset(
    {
        aten.alias.default,
        aten.clone.default,
        aten.detach.default,
        aten.expand.default,
        aten.lift_fresh.default,
        aten.select.int,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.unsqueeze.default,
        aten.view.default,
    }
)


def decided(node: fx.Node) -> bool | None:
    """Returns the result of a comparison that is the same for every draw, otherwise None."""
    target, args = node.target, node.args
    if len(args) != 2 or not isinstance(args[1], (int, float)) or not is_uniform(args[0]):
        return None
    bound = args[1]
    if target in (aten.lt.Scalar, aten.ge.Scalar):
        is_less = False if bound <= 0 else True if bound >= 1 else None
    elif target in (aten.le.Scalar, aten.gt.Scalar):
        is_less = False if bound < 0 else True if bound >= 1 else None
    else:
        return None
    is_negated = target in (aten.ge.Scalar, aten.gt.Scalar)
    return None if is_less is None else is_less != is_negated


def is_uniform(value: Any) -> bool:
    """Returns whether a value consists of uniform draws that nothing has changed in place."""
    while isinstance(value, fx.Node) and value.target in _SAME_NUMBER:
        value = value.args[0]
    if not isinstance(value, fx.Node) or value.target not in _UNIFORM:
        return False
    return not _is_written(memory_of(value), value.graph.nodes)


def _is_written(memory: fx.Node, nodes: Iterable[fx.Node]) -> bool:
    return any(memory in written_memory(each) for each in nodes if is_mutating(each))
