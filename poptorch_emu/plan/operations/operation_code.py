"""The programs of each operation of a graph that determine the size of the code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import fx

from poptorch_emu.ir.graph import tensors_of
from poptorch_emu.machine.costs.code import Family, OperationCode, used_fraction
from poptorch_emu.machine.costs.recurrent import num_combining
from poptorch_emu.plan.operations.operation_family import (
    bare_name,
    family_of,
    item_bytes,
    recurrent_operands,
)


def codes_of(node: fx.Node, num_tiles: int) -> Iterator[OperationCode]:
    """Yields the programs of an operation: the parts of a recurrent layer, otherwise one."""
    code = _code_of(node, num_tiles)
    if code.family is Family.RECURRENT:
        yield from _recurrent(node, code, num_tiles)
    elif code.family is not Family.VIEW:
        yield code


def _recurrent(node: fx.Node, whole: OperationCode, num_tiles: int) -> Iterator[OperationCode]:
    """Yields the products of a step, and the programs of its gates; a loop stores them once.

    The inputs of all gates are multiplied together, and so is the state, except that the last gate
    of a GRU has a product of its own. Backward has each of them twice: for the gradients of data
    and of weights. Source: PopLibs' recurrent layers.
    """
    _, input_weight, hidden_weight = recurrent_operands(node)
    width, dtype = hidden_weight.shape[1], hidden_weight.dtype
    num_gates, size = hidden_weight.shape[0] // width, item_bytes(node, hidden_weight)
    together = (num_gates - 1, 1) if num_gates == 3 else (num_gates,)
    elements = (input_weight.numel(), *(count * width * width for count in together))
    gates = ("sigmoid",) * num_gates + ("add",) * num_combining(num_gates)
    for direction in range(2 if "backward" in bare_name(node) else 1):
        for nth, count in enumerate(elements):
            fraction = used_fraction(count * size, num_tiles)
            product = (whole.signature, direction, nth)
            yield OperationCode(Family.PRODUCT, (None, dtype), product, fraction)
        for nth, name in enumerate(gates):
            gate = (whole.signature, direction, name, nth)
            yield replace(whole, family=Family.ELEMENTWISE, codelet=(name, dtype), signature=gate)


def _code_of(node: fx.Node, num_tiles: int) -> OperationCode:
    results = list(tensors_of([node]))
    types = tuple(value.dtype for value in results)
    inputs = tuple((tuple(v.shape), v.dtype) for v in tensors_of(node.all_input_nodes))
    settings = tuple(map(repr, (*_settings(node.args), *_settings(node.kwargs))))
    num_bytes = max((value.numel() * item_bytes(node, value) for value in results), default=0)
    family = family_of(node)
    # Each elementwise operator has a vertex of its own; other families share one.
    own = node.target if family is Family.ELEMENTWISE else None
    return OperationCode(
        family,
        (own, *types[:1]),
        (node.target, inputs, types, settings),
        used_fraction(num_bytes, num_tiles),
    )


def _settings(arguments: Any) -> Iterator[Any]:
    """Yields the arguments that are not values of the graph."""
    if isinstance(arguments, dict):
        arguments = arguments.values()
    for value in arguments:
        if isinstance(value, (list, tuple)):
            yield from _settings(value)
        elif not isinstance(value, fx.Node):
            yield value
