"""Refusals of an export. Each refusal names the user's line and a remedy."""

from __future__ import annotations

from typing import Any

from torch import fx

from poptorch_emu.compile.executable import Executable
from poptorch_emu.config import CompileConfig, Recomputation
from poptorch_emu.errors import make_error
from poptorch_emu.export.forward import ForwardStages, is_forward
from poptorch_emu.export.rewriting import BATCH_NORM, random_name
from poptorch_emu.export.stage_module import source_line
from poptorch_emu.ir.control import COND, FOR_LOOP, HOST_CALL
from poptorch_emu.ir.exchange import COLLECTIVES
from poptorch_emu.ir.graph import Graph, SinkKind, SourceKind, operation_of, source_of
from poptorch_emu.log import logger
from poptorch_emu.passes.memory_order import STRIDED

_CONTROL = {
    FOR_LOOP: ("a loop", "Write it as a Python loop with a fixed count, which is unrolled."),
    COND: ("a branch", "Compute both sides and choose with torch.where."),
    **dict.fromkeys(
        COLLECTIVES,
        (
            "an exchange between replicas",
            "Compile the model with one replica, where it is a copy.",
        ),
    ),
    HOST_CALL: ("a call of the host", "Move it out of forward, before or after the call."),
}


def check_exportable(executable: Executable, *, freezes_statistics: bool) -> None:
    """Raises an `Error` if plain PyTorch would compute anything differently."""
    _check_config(executable.config)
    graph = executable.graph
    if executable.guards.reads:
        raise make_error(
            "The program holds for some values of its inputs only (emulator.set_value_guards), "
            "but exported stages cannot check these values. Make these inputs buffers or "
            "arguments of the constructor, and compile without the option."
        )
    if graph.averages:
        raise make_error(
            f"The moving average '{graph.averages[0].average}' (ExpMovAvg) changes with each "
            "update, which exported stages do not do. Change it in the training loop: "
            "average.lerp_(weight, 1 - factor)."
        )
    for node in graph.operations:
        if is_forward(node):
            _check_operation(node)
    _check_writes(graph, freezes_statistics=freezes_statistics)
    _check_constants(graph)


def check_stages(stages: ForwardStages) -> None:
    """Raises an `Error` unless the last stage computes the loss as a single number."""
    loss = stages.loss
    if loss is None:
        return
    line = source_line(operation_of(loss))
    if loss not in stages.nodes[-1]:
        raise make_error(
            f"The loss at {line} is not in the last stage, which is where an exported pipeline "
            "begins backward. Compute the loss in the last block."
        )
    shape = list(loss.meta["val"].shape)
    if shape:
        raise make_error(
            f"The loss at {line} has the shape {shape}; PyTorch starts backward at a single "
            "number. Reduce it: poptorch.identity_loss(loss, reduction='sum')."
        )


def warn_of_losses(executable: Executable) -> None:
    """Warns about parts that the export omits or replaces."""
    config, graph = executable.config, executable.graph
    drawn = [node for node in graph.operations if is_forward(node) and random_name(node)]
    if drawn:
        logger.warning(
            "The random operation at %s (%d in all) draws from PyTorch's generator once it is "
            "exported: the numbers are others. Seed it with torch.manual_seed.",
            source_line(drawn[0]),
            len(drawn),
        )
    if config.recomputation not in (None, Recomputation.NONE) or _is_offloaded(config):
        logger.warning(
            "Recomputation and offloading are left out of the exported stages: they change "
            "memory, not values. Wrap layers that need too much memory in torch.utils.checkpoint "
            "before you compile."
        )
    if config.anchors:
        logger.warning(
            "Anchored tensors (%s) are left out: read them with a forward hook, or return them.",
            ", ".join(anchor.short_name for anchor in config.anchors),
        )


def _check_config(config: CompileConfig) -> None:
    if config.num_processes > 1:
        raise make_error(
            f"A model of {config.num_processes} processes that each have replicas cannot be "
            "exported. Compile it with all replicas in replicationFactor and without "
            "Distributed.configureProcessId; each process of the pipeline then takes its share."
        )
    if config.weight_groups or config.input_group_size > 1:
        raise make_error(
            "Groups of replicas that have weights or inputs of their own cannot be exported: "
            "exported replicas all train the same weights, each on its own rows. Leave out "
            "replicaGrouping and inputReplicaGrouping."
        )
    sharding = config.sharding
    if any((sharding.weight, sharding.optimizer, sharding.accumulator, sharding.activation)):
        raise make_error(
            "A model with replicated tensor sharding cannot be exported. Compile it without, and "
            "shard each exported stage with torch.distributed.fsdp.fully_shard."
        )
    if config.rounds_stochastically:
        raise make_error(
            "A model that rounds stochastically cannot be exported: PyTorch has no such rounding. "
            "Call options.Precision.enableStochasticRounding(False), and keep weights in float32."
        )
    if config.is_training and config.device_iterations > 1:
        raise make_error(
            f"A training model with deviceIterations({config.device_iterations}) cannot be "
            "exported: a step of an exported pipeline is one update. Compile it with "
            "deviceIterations(1), and call step as often."
        )


def _check_operation(node: fx.Node) -> None:
    target: Any = node.target
    line = source_line(node)
    if target in _CONTROL:
        construct, way_out = _CONTROL[target]
        raise make_error(f"{line} has {construct}, which cannot be exported. {way_out}")
    if target.namespace != "aten" and target is not STRIDED and random_name(node) is None:
        raise make_error(
            f"{line} uses the operator {target}, which plain PyTorch does not have. Build it from "
            "PyTorch's own operations, and compile the model again."
        )


def _check_writes(graph: Graph, *, freezes_statistics: bool) -> None:
    """Raises an `Error` if forward changes a variable or an argument in place."""
    for sink, node in graph.results:
        if sink.kind is SinkKind.INPUT:
            raise make_error(
                f"forward changes its argument number {sink.name} in place at "
                f"{source_line(operation_of(node))}, which an exported stage does not do. Return "
                "the value instead."
            )
        if sink.kind is not SinkKind.VARIABLE:
            continue
        is_statistic = node.op == "call_function" and operation_of(node).target is BATCH_NORM
        if is_statistic and freezes_statistics:
            continue
        line = source_line(operation_of(node)) if node.op == "call_function" else "a line"
        way_out = (
            "Export with freeze_statistics=True to go on with the statistics as they are, put the "
            "layer into eval mode, or use a group norm."
            if is_statistic
            else "Compute it outside of forward."
        )
        raise make_error(
            f"forward changes '{sink.name}' at {line}: with several micro-batches on their way, "
            f"exported stages would change it in another order. {way_out}"
        )


def _check_constants(graph: Graph) -> None:
    for node in graph.sources:
        source = source_of(node)
        if source.kind is SourceKind.CONSTANT and source.name not in graph.constants:
            raise make_error(
                "The model was compiled by another process: a cache or a file has its program, "
                "but no constants. Compile it here, without enableExecutableCaching."
            )


def _is_offloaded(config: CompileConfig) -> bool:
    locations = config.locations
    kinds = (locations.activation, locations.weight, locations.optimizer, locations.accumulator)
    return any(location.is_on_chip is False for location in kinds)
