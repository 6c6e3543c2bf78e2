"""The spec of an exported pipeline, from the compiled model and its stages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

import torch
from torch import fx

from poptorch_emu.compile.executable import Executable
from poptorch_emu.config import CompileConfig, PipelineOrder, StrategyKind
from poptorch_emu.enums import ReductionType
from poptorch_emu.export.forward import ForwardStages
from poptorch_emu.export.pipeline_spec import PipelineSpec, StageSpec, TensorSpec
from poptorch_emu.export.split_backward import may_be_split
from poptorch_emu.ir.graph import SourceKind, source_of
from poptorch_emu.schedule.pytorch_text import pytorch_rows

# Schedules that have a class in PyTorch; other schedules run as tables.
_KINDS_OF_TABLES = {
    "gpipe": "gpipe",
    "one_f_one_b": "1f1b",
    "interleaved_1f1b": "interleaved",
    "looped_bfs": "looped_bfs",
    "zero_bubble_h1": "zero_bubble_h1",
    "zero_bubble_v": "zero_bubble_v",
    "dualpipe_v": "dualpipe_v",
}


def spec_of(
    executable: Executable,
    stages: ForwardStages,
    with_gradient: Set[fx.Node],
    micro_batches: Sequence[torch.Tensor],
    parameters: Iterable[str],
    max_grad_norm: float,
) -> PipelineSpec:
    """Returns the spec of a compiled model's stages.

    Args:
        executable: the compiled program.
        stages: forward of the program.
        with_gradient: values that have a gradient.
        micro_batches: inputs of one micro-batch.
        parameters: names of all parameters of the model, in order.
        max_grad_norm: limit of the norm of all gradients; infinity for no limit.
    """
    config = executable.config
    table = None if config.strategy.table is None else executable.schedule

    def of_node(node: fx.Node) -> TensorSpec:
        return _tensor_spec(node.meta["val"], node in with_gradient)

    read = {
        int(source_of(node).name): node.meta["val"]
        for node in stages.graph.sources
        if source_of(node).kind is SourceKind.INPUT
    }
    holders = stages.holders_of_trained()
    inputs = (read.get(number, value) for number, value in enumerate(micro_batches))
    return PipelineSpec(
        stages=tuple(
            StageSpec(
                received=tuple(map(of_node, stages.received(stage))),
                returned=tuple(map(of_node, stages.returned(stage))),
                inputs=tuple(stages.inputs_of(stage)),
                is_split=may_be_split(stages, stage, with_gradient),
            )
            for stage in range(stages.num_stages)
        ),
        inputs=tuple(_tensor_spec(value) for value in inputs),
        num_micro_batches=config.num_micro_batches,
        kind=_kind(config),
        is_training=config.is_training,
        is_mean=config.reduction_type is ReductionType.Mean,
        rank_of_stage=() if table is None else table.ipu_of_stage,
        rows=() if table is None else pytorch_rows(table),
        trained=tuple((name, tuple(holders[name])) for name in parameters if name in holders),
        num_replicas=config.replication_factor,
        max_grad_norm=max_grad_norm,
    )


def _tensor_spec(value: torch.Tensor, has_gradient: bool = False) -> TensorSpec:
    dtype = str(value.dtype).removeprefix("torch.")
    return TensorSpec(tuple(value.shape), dtype, has_gradient)


def _kind(config: CompileConfig) -> str:
    table = config.strategy.table
    if table is not None and config.is_training:
        return _KINDS_OF_TABLES.get(table.name, "table")
    is_sequential = config.strategy.order is PipelineOrder.SEQUENTIAL
    is_pipeline = config.strategy.kind is StrategyKind.PIPELINED and not is_sequential
    return "1f1b" if is_pipeline else "sequential"
