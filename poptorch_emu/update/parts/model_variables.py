"""The variables of a graph, and the plan of their update, before anything is lowered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from poptorch_emu.config import CompileConfig
from poptorch_emu.ir.graph import Graph, SinkKind, Source, SourceKind, source_of
from poptorch_emu.schedule.partition import Partition
from poptorch_emu.segments.segmented_graph import SegmentedGraph
from poptorch_emu.segments.sharding import sharding_of
from poptorch_emu.segments.variables import VariableInfo
from poptorch_emu.update.formulas.config import OptimizerConfig
from poptorch_emu.update.formulas.loss_scale import FACTOR
from poptorch_emu.update.parts.loss_scale_parts import FACTOR_VARIABLE
from poptorch_emu.update.parts.update_parts import Gradient
from poptorch_emu.update.parts.update_plan import UpdatePlan


def model_variables(graph: Graph, config: CompileConfig) -> dict[str, VariableInfo]:
    """Returns the parameters and buffers that `graph` reads, by name; numbers come later."""
    written = {sink.name for sink in graph.sinks if sink.kind is SinkKind.VARIABLE}
    groups = {entry.name: entry for entry in config.weight_groups}
    variables: dict[str, VariableInfo] = {}
    for node in graph.sources:
        source = source_of(node)
        if source.kind is not SourceKind.VARIABLE:
            continue
        if source.name == FACTOR:
            variables[FACTOR_VARIABLE.name] = FACTOR_VARIABLE
            continue
        value = node.meta["val"]
        is_per_replica = source.name in written and config.replication_factor > 1
        variable = VariableInfo(-1, source.name, tuple(value.shape), value.dtype, is_per_replica)
        if source.name in groups:
            entry = groups[source.name]
            of_replica = entry.of_replica(config.replication_factor)
            variable = replace(variable, group_of_replica=of_replica, reads_all=entry.reads_all)
        is_sharded = sharding_of(variable, config).has_weight
        variables[source.name] = replace(variable, is_sharded=is_sharded)
    return variables


def plan_update(
    cut: SegmentedGraph,
    placed: Partition,
    variables: Mapping[str, VariableInfo],
    config: CompileConfig,
    optimizer: OptimizerConfig,
    parameters: tuple[str, ...],
) -> UpdatePlan:
    """Returns what each IPU runs at the end of a window.

    Args:
        cut: where gradients end.
        placed: on which IPU.
        variables: of the model, by name.
        config: how gradients are reduced and weights are cut.
        optimizer: whose rule it is.
        parameters: the trainable ones, in the order that the optimiser knows.
    """
    gradients = [
        Gradient(
            sink.name,
            placed.ipu_of_stage[port[1]],
            optimizer.group_of_parameter[parameters.index(sink.name)],
            variables[sink.name],
            parameters.index(sink.name),
            node in cut.by_rows,
        )
        for sink, port, node in cut.results
        if sink.kind is SinkKind.GRADIENT
    ]
    plan = UpdatePlan(optimizer, config, len(placed.ipu_ids))
    plan.add(gradients, _loss_ipu(cut, placed))
    return plan


def _loss_ipu(cut: SegmentedGraph, placed: Partition) -> int:
    """Returns the IPU that reads the factor of an automatic loss scale, if there is one."""
    source = Source(SourceKind.VARIABLE, FACTOR)
    ports = [port for port, code in cut.segments.items() if source in code.loads]
    assert len(ports) <= 1, "back-propagation starts in one place"
    return placed.ipu_of_stage[ports[0][1]] if ports else 0
