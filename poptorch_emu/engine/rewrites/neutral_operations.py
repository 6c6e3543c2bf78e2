"""Removes operations that change no number, and computes single numbers at compile time.

Keras writes losses for any number of samples. For example, a loss is divided by a number that is
selected where it is not 0, and then multiplied by 1. The engine needs as long for an operation on
one number as for one on a thousand. The machine's graph keeps these operations.
"""

from __future__ import annotations

import torch
from torch import fx

from poptorch_emu.engine.engine_graph import EngineGraph
from poptorch_emu.ir.arguments import arguments_of, is_random
from poptorch_emu.ir.evaluate import evaluate
from poptorch_emu.ir.graph import Source, SourceKind, record_of, source_of
from poptorch_emu.ir.operator_traits import traits_of
from poptorch_emu.passes.simplify import has_same_metadata, remove_dead

aten = torch.ops.aten

# Operators with the operand that leaves every number unchanged. `add` is missing: -0 plus 0 is 0.
_UNCHANGED_BY = {aten.mul.Tensor: 1, aten.div.Tensor: 1, aten.sub.Tensor: 0}
_SAME_SHAPE = {aten.expand.default, aten.view.default}


def leave_out_neutral_operations(code: EngineGraph) -> int:
    """Replaces results of neutral operations by existing values; returns the number replaced."""
    num_changes = 0
    for node in code.graph.operations:
        value = _handed_on(node) or _chosen(node, code) or _number(node, code)
        if value is not None:
            node.replace_all_uses_with(value)
            num_changes += 1
    remove_dead(code.graph)
    return num_changes


def _handed_on(node: fx.Node) -> fx.Node | None:
    """Returns the argument that an operation returns unchanged, or `None`."""
    if node.target in _UNCHANGED_BY:
        number = arguments_of(node).other
        if isinstance(number, fx.Node) or number != _UNCHANGED_BY[node.target]:
            return None
    elif node.target not in _SAME_SHAPE:
        return None
    value: fx.Node = arguments_of(node).self
    return value if has_same_metadata(node, value) else None


def _chosen(node: fx.Node, code: EngineGraph) -> fx.Node | None:
    """Returns the value that a constant selects in `where`, if it has the result's metadata."""
    if node.target is not aten.where.self:
        return None
    arguments = arguments_of(node)
    condition = _constant(arguments.condition, code)
    if condition is None or bool(condition.any()) is not bool(condition.all()):
        return None
    chosen: fx.Node = arguments.self if condition.all() else arguments.other
    return chosen if has_same_metadata(node, chosen) else None


def _constant(node: fx.Node, code: EngineGraph) -> torch.Tensor | None:
    if node.op != "placeholder" or source_of(node).kind is not SourceKind.CONSTANT:
        return None
    return code.graph.constants[source_of(node).name]


def _number(node: fx.Node, code: EngineGraph) -> fx.Node | None:
    """Returns a constant for a number that depends only on constants or on the type of a value.

    Larger constants are not created, because reading them from memory would take longer.
    """
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor) or value.dim() > 0 or is_random(node):
        return None
    known = {each: _constant(each, code) for each in node.all_input_nodes}
    # In phased execution the memory plan counts the argument of these operators, so they stay.
    if traits_of(node.target).reads_shape_only and not code.config.strategy.is_phased:
        known = {each: torch.empty((), dtype=value.dtype) for each in known}
    is_ours = node.target.namespace == "aten"  # type: ignore[union-attr]
    if not is_ours or not known or any(each is None for each in known.values()):
        return None
    name = f"number_{node.name}"
    code.graph.constants[name] = evaluate(node, known)
    return code.graph.add_source(Source(SourceKind.CONSTANT, name), value, record_of(node))
