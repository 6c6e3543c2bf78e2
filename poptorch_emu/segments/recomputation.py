"""The forward operations that backward runs again, so that their results need not be stashed.

Recomputation changes no bit, because an operation that runs again has the same inputs, and random
numbers depend on the micro-batch and the operation alone. So the plan of the machine recomputes as
the real system would, while the engine recomputes only if that saves memory that is short.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import fx

from poptorch_emu.config import CompileConfig, Recomputation, StrategyKind
from poptorch_emu.ir.graph import (
    Graph,
    SourceKind,
    operation_of,
    record_of,
    results_of,
    source_of,
)
from poptorch_emu.ir.operator_traits import traits_of
from poptorch_emu.ir.record import Phase
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.partition import Partition
from poptorch_emu.segments.standard_recomputation import standard_recomputation
from poptorch_emu.torch_versions import OpOverload

aten = torch.ops.aten

# Operators that NORM_ONLY recomputes. Instance norm decomposes into the first two.
_NORMS = frozenset(
    {
        aten._native_batch_norm_legit_functional,
        aten._native_batch_norm_legit,
        aten._native_batch_norm_legit_no_training,
        aten.native_batch_norm,
        aten.native_layer_norm,
        aten.native_group_norm,
    }
)


def recomputation_of(config: CompileConfig, placed: Partition) -> Recomputation:
    """Returns the kind of recomputation: the user's choice, otherwise that of the strategy.

    Source: PopTorch turns recomputation on for training pipelines over more than one IPU.
    """
    is_pipeline = config.strategy.kind is StrategyKind.PIPELINED and len(placed.ipu_ids) > 1
    preset = Recomputation.PIPELINE if is_pipeline else Recomputation.NONE
    return preset if config.recomputation is None else config.recomputation


def recomputed_operations(
    graph: Graph, placed: Partition, mode: Recomputation
) -> frozenset[fx.Node]:
    """Returns the forward operations that the backward of their stage runs again.

    Never recomputed are operations that the user marked as checkpoints, and operations with an
    effect. The last stage of a pipeline keeps the operations after its last checkpoints, because
    its backward follows at once. Without checkpoints it keeps all of its operations. Source:
    PopART's pipeline transform.

    Always recomputed are operations inside `torch.utils.checkpoint.checkpoint`, except those that
    compute its results. Views of weights are always recomputed, too, because they cost nothing and
    otherwise a copy of the weight would wait for backward.
    """
    stages: dict[int, list[fx.Node]] = {}
    checkpoints: list[fx.Node] = []
    for node in graph.operations:
        kind, stage = placed.port_of[node]
        if kind is Kind.FORWARD and record_of(node).is_checkpoint:
            checkpoints.append(node)
        elif kind is Kind.FORWARD and _is_pure(node):
            stages.setdefault(stage, []).append(node)
    before = _before(checkpoints, placed)
    chosen: list[fx.Node] = []
    for stage, operations in stages.items():
        is_last = stage == placed.num_stages - 1
        if mode is Recomputation.PIPELINE and is_last:
            chosen += before.intersection(operations)
        else:
            chosen += _of_stage(operations, mode, placed)
        chosen += [
            node for node in operations if _is_inside_call(node) or _is_view_of_weight(node, placed)
        ]
    return frozenset(chosen)


def _before(checkpoints: list[fx.Node], placed: Partition) -> set[fx.Node]:
    """Returns the forward operations on which a checkpoint of their own stage depends."""
    found: set[fx.Node] = set()
    pending = list(checkpoints)
    while pending:
        node = pending.pop()
        for value in node.all_input_nodes:
            if value.op != "call_function" or placed.port_of[value] != placed.port_of[node]:
                continue
            producer = operation_of(value)
            if producer not in found:
                found.add(producer)
                pending.append(producer)
    return found


def views_of_weights(graph: Graph, placed: Partition) -> frozenset[fx.Node]:
    """Returns the views of weights, which the engine always runs again because they are free.

    A view that waited in a link would keep alive the copy of a weight that a phase has fetched.
    """
    return frozenset(
        node
        for node in graph.operations
        if placed.port_of[node][0] is Kind.FORWARD
        and _is_pure(node)
        and not record_of(node).is_checkpoint
        and _is_view_of_weight(node, placed)
    )


def _of_stage(
    operations: list[fx.Node], mode: Recomputation, placed: Partition
) -> Iterable[fx.Node]:
    if mode is Recomputation.ALL:
        return operations
    if mode is Recomputation.NORM_ONLY:
        return [node for node in operations if _packet(node) in _NORMS]
    if mode is Recomputation.STANDARD:
        return standard_recomputation(operations)
    if mode is Recomputation.PIPELINE:
        return [node for node in operations if not _leaves_stage(node, placed)]
    return ()


def _leaves_stage(node: fx.Node, placed: Partition) -> bool:
    """Returns whether a result goes to the forward of another stage, which keeps it alive."""
    home = placed.port_of[node]
    return any(
        placed.port_of[user][0] is Kind.FORWARD and placed.port_of[user] != home
        for user in _users(node)
        if user in placed.port_of
    )


def _is_inside_call(node: fx.Node) -> bool:
    """Returns whether an operation is inside a checkpointed call and computes no result of it."""
    call = record_of(node).recomputed_call
    return call > 0 and not any(_is_outside(user, call) for user in _users(node))


def _is_outside(user: fx.Node, call: int) -> bool:
    if user.op == "output":
        return True
    record = record_of(user)
    return record.phase is Phase.FORWARD and record.recomputed_call != call


def _is_view_of_weight(node: fx.Node, placed: Partition) -> bool:
    """Returns whether a value is a view or a preparation of a variable that is only read."""
    while node.op == "call_function":
        target = node.target
        if not isinstance(target, OpOverload):
            return False
        traits = traits_of(target)
        if not (traits.is_view or traits.is_preparation):
            return False
        node = node.all_input_nodes[0]
    is_written = node in placed.port_of
    return source_of(node).kind is SourceKind.VARIABLE and not is_written


def _users(node: fx.Node) -> Iterator[fx.Node]:
    """Yields the users of all results of an operation."""
    for value in results_of(node):
        yield from value.users


def _packet(node: fx.Node) -> object:
    return getattr(node.target, "overloadpacket", None)


def _is_pure(node: fx.Node) -> bool:
    return traits_of(node.target).is_pure
