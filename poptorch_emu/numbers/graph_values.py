"""Descriptions of the values of a graph, and of the results of an operator's call."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from poptorch_emu.ir.arguments import named_arguments
from poptorch_emu.ir.control import HOST_CALL
from poptorch_emu.ir.graph import Graph, SinkKind, SourceKind, operation_of, record_of, source_of
from poptorch_emu.ir.operator_traits import traits_of
from poptorch_emu.ir.record import NodeRecord, Phase
from poptorch_emu.numbers.run import VIEW, Direction, Value, given, gradient_name
from poptorch_emu.torch_versions import OpOverload
from poptorch_emu.trace.pytorch.random_ops import RANDOM_REWRITES

_DIRECTIONS = {
    Phase.FORWARD: Direction.FORWARD,
    Phase.BACKWARD: Direction.BACKWARD,
    Phase.UPDATE: Direction.UPDATE,
}

# Operators that differ only in whether they mutate their arguments, with the name that they share.
_BATCH_NORM = "native_batch_norm"
_SAME = {
    "_native_batch_norm_legit": _BATCH_NORM,
    "_native_batch_norm_legit_functional": _BATCH_NORM,
    "_native_batch_norm_legit_no_training": _BATCH_NORM,
    "_index_put_impl": "index_put",
}
# The random result of dropout is its mask, result 1; other random operators have one result.
DROPOUT = torch.ops.poptorch_emu.dropout.default
_OUR_RANDOM = frozenset({"uniform", "normal", "log_normal", "exponential", "cauchy", "geometric",
                         "bernoulli", "randint", "randperm", "multinomial"})  # fmt: skip


def observed_values(graph: Graph) -> dict[fx.Node, Value]:
    """Returns the values to record: inputs, variables that the graph assigns, and results.

    A view has the numbers of another value and is left out, unless it is a gradient or the output
    of its module, which a forward hook would see.
    """
    written = {sink.name for sink in graph.sinks if sink.kind is SinkKind.VARIABLE}
    gradients: dict[fx.Node, str] = {}
    for sink, node in graph.results:
        if sink.kind is SinkKind.GRADIENT:
            gradients.setdefault(node, gradient_name(sink.name))
    values: dict[fx.Node, Value] = {}
    for node in graph.fx.nodes:
        if node.op == "placeholder":
            source = source_of(node)
            is_written = source.kind is SourceKind.VARIABLE and source.name in written
            is_read = any(user.op == "call_function" for user in node.users)
            if is_read and (is_written or source.kind is SourceKind.INPUT):
                values[node] = given(given_name(node), node.meta["val"])
        elif node.op == "call_function" and isinstance(node.meta["val"], torch.Tensor):
            name = gradients.get(node, "")
            if name or is_worth_seeing(operation_of(node).target) or _leaves_module(node):
                values[node] = _of_node(node, name)
    return values


def select_masks(graph: Graph) -> None:
    """Selects the mask of each dropout, so that it is recorded even if nothing else reads it."""
    for node in graph.operations:
        if node.target is DROPOUT and not any(is_drawn(user) for user in node.users):
            with graph.fx.inserting_before(node.next):
                graph.add_operation(
                    operator.getitem, (node, 1), {}, node.meta["val"][1], record_of(node)
                )


def _leaves_module(node: fx.Node) -> bool:
    record = record_of(node)
    if record.phase is not Phase.FORWARD or not is_view(node) or not record.module:
        return False
    users = [user for user in node.users if user.op == "call_function"]
    return all(record_of(user).module != record.module for user in users)


def result_number(node: fx.Node) -> int:
    """Returns the index of a value among the results of its operation."""
    if node.target is not operator.getitem:
        return 0
    number = node.args[1]
    assert isinstance(number, int), "a selection has the number of the result"
    return number


def numbers_read(node: fx.Node, numbers: Mapping[fx.Node, int]) -> list[int]:
    """Returns the numbers of the recorded values that an operation reads, directly or not."""
    found, pending = list[int](), [*operation_of(node).all_input_nodes]
    seen = set[fx.Node]()
    while pending:
        each = pending.pop(0)
        if each in seen:
            continue
        seen.add(each)
        if each in numbers:
            found.append(numbers[each])
        else:
            pending += each.all_input_nodes
    return found


def is_view(node: fx.Node) -> bool:
    """Returns whether a value is a view of another one."""
    target = operation_of(node).target
    return isinstance(target, OpOverload) and traits_of(target).is_view


def given_name(source: fx.Node) -> str:
    """Returns the name of a source: the number of an input, or the name of a variable."""
    found = source_of(source)
    return f"input {found.name}" if found.kind is SourceKind.INPUT else found.name


def is_worth_seeing(target: Any) -> bool:
    """Returns whether an operator computes numbers, unlike views and uninitialized tensors."""
    if not isinstance(target, OpOverload) or target is HOST_CALL:
        return False
    return not traits_of(target).is_view and not kind_of(target).startswith(("empty", "new_empty"))


def kind_of(target: OpOverload) -> str:
    """Returns the name of an operator, without the mark of its in-place form."""
    name = target._schema.name.rpartition("::")[2].rstrip("_")
    return _SAME.get(name, name)


def is_drawn(node: fx.Node) -> bool:
    """Returns whether a value of a graph is random; of dropout, only the mask is."""
    operation = operation_of(node)
    if operation.target is DROPOUT:
        return node.target is operator.getitem and bool(node.args[1] == 1)
    target = operation.target
    return isinstance(target, OpOverload) and draws(target, operation.args, operation.kwargs)


def draws(target: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Returns whether a call of our or PyTorch's operator draws random numbers.

    Attention without dropout draws none, although PyTorch marks its operators as random.
    """
    if target._schema.name.startswith("poptorch_emu::"):
        return kind_of(target) in _OUR_RANDOM
    if target not in RANDOM_REWRITES and torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    return bool(named_arguments(target, args, kwargs).get("dropout_p", None) != 0.0)


def value_of_call(
    target: OpOverload,
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]],
    record: NodeRecord,
    result: int,
    tensor: torch.Tensor,
) -> Value:
    """Returns the description of one result of an operator's call.

    Args:
        target: operator that is called.
        arguments: (positional arguments, keyword arguments).
        record: phase, module and source line of the call.
        result: index of the result.
        tensor: tensor with the type and shape of the result.
    """
    return Value(
        kind_of(target),
        result,
        _DIRECTIONS[record.phase],
        record.module,
        record.source,
        tensor.dtype,
        tuple(tensor.shape),
        settings=_settings(target, *arguments),
        is_random=draws(target, *arguments),
    )


def _of_node(node: fx.Node, name: str) -> Value:
    operation = operation_of(node)
    assert isinstance(operation.target, OpOverload), "operations are those of the dispatcher"
    arguments = operation.args, operation.kwargs
    record = record_of(operation)
    value = value_of_call(
        operation.target, arguments, record, result_number(node), node.meta["val"]
    )
    kind = value.kind if name or not is_view(node) else VIEW
    return replace(value, kind=kind, name=name, is_random=is_drawn(node))


def _settings(
    target: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, float | str]:
    """Returns the floats and strings among the arguments of a call, by their names."""
    values = named_arguments(target, args, kwargs)
    return {name: value for name, value in values.items() if isinstance(value, (float, str))}
