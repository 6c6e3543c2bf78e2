"""Removes identity operations, and operations whose results are not used.

A recurrent layer whose reserve is not used is told not to keep one. This is so for every layer in
inference, because inference is traced like training (`forward` may differentiate by itself).
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from poptorch_emu.ir.average import MOVING_AVERAGE
from poptorch_emu.ir.control import HOST_CALL
from poptorch_emu.ir.graph import Graph, SinkKind, SourceKind, source_of
from poptorch_emu.ir.marks import OVERLAP_INPUT, OVERLAP_OUTPUT

aten = torch.ops.aten

_PASS_ON = {
    aten.detach.default,
    aten.alias.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
    aten.view_as.default,
    OVERLAP_INPUT,
    OVERLAP_OUTPUT,
}

# Index of the reserve among the results of `rnn_layer`, and of `training` among its arguments.
_RESERVE, _TRAINING = 3, 5


def run(graph: Graph) -> Graph:
    """Simplifies `graph`, which must not mutate, in place and returns it."""
    for region in graph.regions.values():
        run(region)
    for node in graph.operations:
        value = _passed_on(node)
        if value is not None:
            node.replace_all_uses_with(value)
    remove_dead(graph)
    for node in graph.operations:
        if node.target is torch.ops.poptorch_emu.rnn_layer.default:
            _drop_unused_reserve(node)
    return graph


def remove_dead(graph: Graph) -> None:
    """Erases every operation and every source without a user.

    Exceptions are variables that the update or the graph assigns, host calls that return nothing
    (they are made for their effect), and moving averages with their sources.
    """
    assigned = (SinkKind.GRADIENT, SinkKind.VARIABLE)
    updated = {sink.name for sink in graph.sinks if sink.kind in assigned}
    for each in graph.averages:
        updated |= {each.weight, each.average, each.factor.name}
    for node in reversed(list(graph.fx.nodes)):
        if node.op not in ("call_function", "placeholder") or node.users:
            continue
        is_for_host = node.target is HOST_CALL and not node.args[2]
        if is_for_host or node.target is MOVING_AVERAGE:
            continue
        is_updated = node.op == "placeholder" and source_of(node).name in updated
        if not (is_updated and source_of(node).kind is SourceKind.VARIABLE):
            graph.fx.erase_node(node)


def _drop_unused_reserve(layer: fx.Node) -> None:
    used = {user.args[1] for user in layer.users if user.target is operator.getitem}
    if _RESERVE not in used:
        layer.update_arg(_TRAINING, False)


def _passed_on(node: fx.Node) -> fx.Node | None:
    """Returns the value that `node` returns unchanged, or `None` if it is no identity."""
    if node.target in _PASS_ON and isinstance(node.args[0], fx.Node):
        return node.args[0]
    if node.target is aten._to_copy.default and not _changes_type(node):
        return node.args[0]  # type: ignore[return-value]
    if node.target is aten.copy.default and has_same_metadata(node, node.args[1]):
        return node.args[1]  # type: ignore[return-value]
    if node.target is aten.t.default and getattr(node.args[0], "target", None) is node.target:
        return node.args[0].args[0]  # type: ignore[union-attr, return-value]
    return None


def _changes_type(node: fx.Node) -> bool:
    return not has_same_metadata(node, node.args[0]) or node.kwargs.get("memory_format") is not None


def has_same_metadata(node: fx.Node, other: object) -> bool:
    """Returns whether `other` is a node whose value has the type, shape and strides of `node`'s."""
    if not isinstance(other, fx.Node):
        return False
    ours, theirs = node.meta["val"], other.meta["val"]
    return bool(
        ours.dtype == theirs.dtype
        and ours.shape == theirs.shape
        and ours.stride() == theirs.stride()
    )
