"""Finds mutations in a recorded graph, before `passes/functional.py` removes them."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

from torch import fx

from poptorch_emu.ir.arguments import written_arguments
from poptorch_emu.torch_versions import OpOverload


def is_mutating(node: fx.Node) -> bool:
    """Returns whether an operation changes one of its arguments."""
    schema = getattr(node.target, "_schema", None)
    return bool(schema is not None and schema.is_mutable)


def written_values(node: fx.Node) -> Iterator[fx.Node]:
    """Yields the values that `node` writes to, and the tensors that these values are views of."""
    if isinstance(node.target, OpOverload):
        for value in written_arguments(node.target, node.args, node.kwargs):
            yield from memory_sharers(value)


def written_memory(writer: fx.Node) -> set[fx.Node]:
    """Returns the owners of the memory that an operation writes to."""
    found: list[fx.Node] = []
    target: OpOverload = writer.target  # type: ignore[assignment]
    fx.node.map_arg([*written_arguments(target, writer.args, writer.kwargs)], found.append)
    return set(map(memory_of, found))


def memory_of(node: fx.Node) -> fx.Node:
    """Returns the tensor that owns the memory of `node`."""
    *_, first = memory_sharers(node)
    return first


def memory_sharers(value: Any) -> Iterator[fx.Node]:
    """Yields `value`, and the tensors that it is a view of."""
    while isinstance(value, fx.Node):
        yield value
        value = value.args[0] if shares_memory(value) else None


def shares_memory(node: fx.Node) -> bool:
    """Returns whether a result is a view of the first argument, or is that argument."""
    if node.target is operator.getitem:
        return isinstance(node.args[0], fx.Node) and shares_memory(node.args[0])
    if not isinstance(node.target, OpOverload):
        return False
    returns = node.target._schema.returns
    return bool(returns) and returns[0].alias_info is not None
