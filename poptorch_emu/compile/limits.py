"""Checks of a model against the limits of the device, for example its number of IPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from poptorch_emu.config import CompileConfig, PipelineOrder, TargetKind
from poptorch_emu.errors import compiler_error
from poptorch_emu.ir.exchange import is_collective
from poptorch_emu.ir.graph import Graph, SinkKind, SourceKind, record_of, source_of
from poptorch_emu.log import compiler_logger, logger
from poptorch_emu.schedule.partition import Partition
from poptorch_emu.troubleshooting import Topic, before_hint
from poptorch_emu.update.formulas.optimizer_config import OptimizerConfig

# Largest number of IPUs of one process. Source: PopTorch's device manager.
MAX_IPUS = 64


def check_batches(tensors: Sequence[torch.Tensor], config: CompileConfig) -> None:
    """Checks that every input can be divided into micro-batches.

    Raises:
        AssertionError: the first dimension of an input is not a multiple of the batch factor.
    """
    for tensor in tensors:
        rows = tensor.size(0) if tensor.dim() else 1
        assert rows % config.batch_factor == 0, (
            f"Invalid batch dimension: In the input {tensor.shape}, the batch dimension ({rows}) "
            "must be a multiple of "
            f"Options.deviceIterations({config.device_iterations}) * "
            f"(Options.replicationFactor({config.replication_factor}) / "
            f"Options.inputReplicaGrouping.input_group_size({config.input_group_size})) * "
            f"Options.Training.gradientAccumulation({config.gradient_accumulation}) = "
            f"{config.batch_factor} because it is used to calculate the batch size of one "
            f"micro-batch. {_fitting_sizes(rows, config.batch_factor)}; {Topic.BATCH_SIZE}"
        )


def _fitting_sizes(rows: int, factor: int) -> str:
    """Returns advice with the nearest valid batch sizes."""
    below = rows // factor * factor
    nearest = f"{below} or {below + factor}" if below else f"{factor}"
    return f"Give a batch of fitting size: {nearest} rows are the nearest"


def check_exchanges(graph: Graph, config: CompileConfig) -> None:
    """Checks that the number of replicas that exchange values is that of the options.

    Raises:
        Error: the model was recorded for another number of replicas.
    """
    for node in filter(is_collective, graph.operations):
        arguments: Any = node.args
        if arguments[1] != config.num_sharers:
            raise compiler_error(
                f"The model exchanges values between {arguments[1]} replicas at "
                f"{record_of(node).source or node.name}, so it cannot run with "
                f"{config.num_sharers} replicas. Give Options.replicationFactor and the model the "
                "same number of replicas."
            )


def check_broadcast_buffers(graph: Graph, config: CompileConfig) -> None:
    """Checks that replicas with different data may have different buffers.

    Raises:
        Error: the graph changes a parameter or buffer, and the user turned `broadcastBuffers` on.
    """
    if config.broadcast_buffers is False or config.input_group_size >= config.replication_factor:
        return
    written = [sink.name for sink in graph.sinks if sink.kind is SinkKind.VARIABLE]
    if not written:
        return
    error = compiler_error(
        "PopTorch does not support broadcasting buffers: with "
        f"replicationFactor({config.replication_factor}) each replica changes '{written[0]}' by "
        "its own data. If the model can live with replicas whose buffers drift apart, call "
        "poptorch.Options.broadcastBuffers(False); the host then sees those of replica 0; "
        f"{Topic.REPLICA_BUFFERS}"
    )
    if config.broadcast_buffers:
        raise error
    logger.warning(
        "%s",
        before_hint(
            error.message,
            "Until then buffers of replicas drift apart, as with broadcastBuffers(False).",
        ),
    )


def check_trained_and_written(graph: Graph, config: CompileConfig) -> None:
    """Checks that no replica changes a parameter that the update also changes.

    Raises:
        Error: the graph changes a parameter that is trained, and there are several replicas.
    """
    trained = {sink.name for sink in graph.sinks if sink.kind is SinkKind.GRADIENT}
    for sink, node in graph.results:
        is_both = sink.kind is SinkKind.VARIABLE and sink.name in trained
        if is_both and config.replication_factor > 1:
            raise compiler_error(
                f"Parameter {sink.name} is trained, but forward changes it in place at "
                f"{record_of(node).source or 'an unknown line'}: each of the "
                f"{config.replication_factor} replicas would have a value of its own. Change it on "
                "the host between calls (copyWeightsToDevice), or use one replica."
            )


def check_clipped_groups(optimizer: OptimizerConfig, config: CompileConfig) -> None:
    """Checks that the global norm is not clipped if groups of replicas have their own weights.

    Each group would have another norm, so that weights common to all groups would differ.

    Raises:
        Error: the options ask for both.
    """
    if optimizer.clips and config.weight_groups:
        raise compiler_error(
            f"max_grad_norm={optimizer.max_grad_norm} cannot be combined with replicaGrouping "
            f"('{config.weight_groups[0].name}'): each group of replicas would clip by another "
            "norm. Leave out max_grad_norm or replicaGrouping."
        )


def check_num_ipus(placed: Partition, config: CompileConfig, *, is_plan: bool = False) -> None:
    """Checks that one process may use as many IPUs as the model needs.

    A plan may use more IPUs than one process, if their number can be reserved.

    Raises:
        Error: the number of IPUs is too large, or no power of two while rounding is off.
    """
    used = max(placed.ipu_ids) + 1
    total = used * config.replication_factor
    if total > MAX_IPUS and not is_plan:
        raise compiler_error(
            f"Too many IPUs requested ({total}). Experiments that need more than {MAX_IPUS} IPUs "
            "must be run distributed over several processes; use fewer IPUs or fewer replicas; "
            f"{Topic.TOO_MANY_IPUS}"
        )
    reserved = 1 << (total - 1).bit_length()
    if reserved == total or config.target is not TargetKind.HARDWARE:
        return
    if not config.auto_round_num_ipus:
        raise compiler_error(
            f"The model specifies the use of {total} IPUs, however a process must reserve a "
            f"minimum of {reserved}: IPUs are given in powers of two, at most {MAX_IPUS}. Change "
            "the number of IPUs of the model, or reserve the larger number with "
            f"poptorch.Options().autoRoundNumIPUs(True); {Topic.POWER_OF_TWO}"
        )
    if is_plan:
        return
    compiler_logger.warning(
        "Reserving %d IPUs when the model specifices the use of only %d. The others stay idle.",
        reserved,
        total,
    )


def least_micro_batches(num_stages: int, config: CompileConfig) -> int:
    """Returns the least number of micro-batches in a window of a pipeline: one for each stage.

    In sequential order one micro-batch is enough, because stages never overlap.

    Args:
        num_stages: number of forward stages. In training, all but the last have a backward stage.
        config: configuration with the order of the pipeline.
    """
    if config.strategy.order is PipelineOrder.SEQUENTIAL:
        return 1
    return 2 * num_stages - 1 if config.is_training else num_stages


def check_schedule(placed: Partition, config: CompileConfig) -> None:
    """Checks that a pipeline has at least as many micro-batches as stages.

    Raises:
        Error: the pipeline has fewer micro-batches.
    """
    forward = placed.num_stages
    if forward == 1:
        return
    stages = least_micro_batches(forward, config)
    if config.is_training:
        name, given = "Training.gradientAccumulation", config.gradient_accumulation
        detail = f" ({forward} in the model, and {stages - forward} more in training)"
    else:
        name, given, detail = "deviceIterations", config.device_iterations, ""
    if given < stages:
        raise compiler_error(
            f"poptorch.Options().{name} must be greater than or equal to the number of pipeline "
            f"stages ({stages}){detail} with poptorch.PipelinedExecution, but it is {given}. Raise "
            f"it, or use poptorch.ShardedExecution; {Topic.TOO_FEW_MICRO_BATCHES}"
        )


def check_written_variables(graph: Graph, placed: Partition) -> None:
    """Checks that one stage reads and writes each variable that the model changes.

    Otherwise the next micro-batch could read it before this one has written it.

    Raises:
        Error: the reader and the writer are in different stages.
    """
    readers = {
        source_of(node).name: placed.port_of[node]
        for node in graph.sources
        if node in placed.port_of and source_of(node).kind is SourceKind.VARIABLE
    }
    for sink, node in graph.results:
        if sink.kind is not SinkKind.VARIABLE or sink.name not in readers:
            continue
        writer = placed.port_of.get(node, readers[sink.name])
        if writer != readers[sink.name]:
            raise compiler_error(
                f"'{sink.name}' is read in stage {readers[sink.name][1]} and written in stage "
                f"{writer[1]}: micro-batches in flight would see each other's values. Use and "
                "change it within one block."
            )


def check_processes(config: CompileConfig) -> None:
    """Checks that several processes use no feature that needs all replicas in one process.

    Raises:
        Error: groups of replicas have their own weights.
    """
    if config.num_processes == 1 or not config.is_training:
        return
    if config.weight_groups:
        raise compiler_error(
            f"'{config.weight_groups[0].name}' has a replicaGrouping, which is not supported with "
            f"{config.num_processes} processes (Options.Distributed): a group would have members "
            "in several of them. Use one process with all replicas."
        )
