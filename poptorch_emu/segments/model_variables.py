"""The parameters and buffers that a graph reads, before anything is lowered."""

from __future__ import annotations

from dataclasses import replace

import torch

from poptorch_emu.config import CompileConfig
from poptorch_emu.ir.graph import Graph, SinkKind, SourceKind, source_of
from poptorch_emu.segments.sharding import sharding_of
from poptorch_emu.segments.variables import VariableInfo
from poptorch_emu.update.formulas.loss_scale import FACTOR

_LOSS_SCALE_FACTOR = VariableInfo(-1, FACTOR, (), torch.float32, False, initial=1.0)


def model_variables(graph: Graph, config: CompileConfig) -> dict[str, VariableInfo]:
    """Returns the parameters and buffers that `graph` reads, by name.

    Their index is -1 until the program numbers its variables.
    """
    written = {sink.name for sink in graph.sinks if sink.kind is SinkKind.VARIABLE}
    averages = {each.average for each in graph.averages}
    groups = {entry.name: entry for entry in config.weight_groups}
    variables: dict[str, VariableInfo] = {}
    for node in graph.sources:
        source = source_of(node)
        if source.kind is not SourceKind.VARIABLE:
            continue
        if source.name == FACTOR:
            variables[FACTOR] = _LOSS_SCALE_FACTOR
            continue
        value = node.meta["val"]
        is_per_replica = source.name in written and config.replication_factor > 1
        variable = VariableInfo(-1, source.name, tuple(value.shape), value.dtype, is_per_replica)
        if source.name in groups:
            entry = groups[source.name]
            of_replica = entry.of_replica(config.replication_factor)
            variable = replace(variable, group_of_replica=of_replica, reads_all=entry.reads_all)
        is_sharded = source.name not in averages and sharding_of(variable, config).has_weight
        variables[source.name] = replace(variable, is_sharded=is_sharded)
    return variables
