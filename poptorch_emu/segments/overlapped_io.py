"""Overlapped input and output: checks of the annotations, and the transfers that they mean.

An annotation is an identity operation with the tensor and the mode as arguments. It changes no
value.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx

from poptorch_emu.config import CompileConfig, StrategyKind
from poptorch_emu.enums import OutputMode, OverlapMode
from poptorch_emu.errors import Error, compiler_error
from poptorch_emu.ir.graph import Graph, Sink, Source, SourceKind, record_of, source_of
from poptorch_emu.ir.marks import OVERLAP_INPUT, OVERLAP_OUTPUT
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.transfers import Transfer
from poptorch_emu.segments.segmented_graph import SegmentedGraph
from poptorch_emu.torch_versions import OpOverload


def overlap_of(graph: Graph, config: CompileConfig) -> dict[Source | Sink, OverlapMode]:
    """Returns the inputs and outputs that overlap with the compute, with their modes.

    Raises:
        Error: the options do not allow overlap, or an annotated tensor is neither an input that
            only the annotation reads nor an output that is returned once.
    """
    inputs = [node for node in graph.operations if _overlaps(node, OVERLAP_INPUT)]
    outputs = [node for node in graph.operations if _overlaps(node, OVERLAP_OUTPUT)]
    if inputs or outputs:
        _check_options(config, bool(outputs))
    for node in inputs:
        _check_input(node)
    for node in outputs:
        _check_output(graph, node)
    overlapped: dict[Source | Sink, OverlapMode] = {
        source_of(node.all_input_nodes[0]): _mode(node) for node in inputs
    }
    sinks = {result: sink for sink, result in graph.results}
    return overlapped | {sinks[node]: _mode(node) for node in outputs}


def transfers_of(
    overlapped: Mapping[Source | Sink, OverlapMode], cut: SegmentedGraph
) -> tuple[Transfer, ...]:
    """Returns the transfers that overlap with the compute, each with the stage of its tensor."""
    found = []
    for (kind, stage), segment in cut.segments.items():
        for source in segment.loads:
            if kind is Kind.FORWARD and source in overlapped:
                found.append(Transfer(int(source.name), True, stage, overlapped[source]))
    for sink, (_, stage), _ in cut.results:
        if sink in overlapped:
            found.append(Transfer(int(sink.name), False, stage, overlapped[sink]))
    return tuple(found)


def _overlaps(node: fx.Node, target: OpOverload) -> bool:
    return node.target is target and _mode(node) is not OverlapMode.NoOverlap


def _mode(node: fx.Node) -> OverlapMode:
    return OverlapMode(node.args[1])


def _check_options(config: CompileConfig, has_outputs: bool) -> None:
    if config.strategy.kind is StrategyKind.PIPELINED:
        raise compiler_error(
            "Overlapped IO is not supported with poptorch.PipelinedExecution. If the model uses a "
            "single IPU, choose poptorch.ShardedExecution; otherwise leave the overlap out."
        )
    if config.machine.num_io_tiles == 0:
        raise compiler_error(
            "No IO tiles allocated: overlapped IO needs tiles of its own. Set apart 32 or more "
            "with poptorch.Options().TensorLocations.numIOTiles."
        )
    if has_outputs and config.output_mode not in (OutputMode.All, OutputMode.Sum):
        raise compiler_error(
            f"Unsupported output mode for overlapped IO: {config.output_mode.name}. Choose "
            "poptorch.OutputMode.All or poptorch.OutputMode.Sum."
        )


def _check_input(node: fx.Node) -> None:
    value = node.args[0]
    assert isinstance(value, fx.Node), "an annotation takes a tensor"
    if value.op != "placeholder" or source_of(value).kind is not SourceKind.INPUT:
        raise _error(
            node,
            "poptorch.set_overlap_for_input applied on a node which is not a tensor input. Use it "
            "on an argument of forward, before anything else.",
        )
    if set(value.users) != {node}:
        raise _error(
            node,
            "poptorch.set_overlap_for_input must be the only op applied to an input, which is not "
            f"the case for input {source_of(value).name}. Use its result in all other operations.",
        )


def _check_output(graph: Graph, node: fx.Node) -> None:
    returned = [result for _, result in graph.results if result is node]
    if not returned:
        raise _error(
            node,
            "poptorch.set_overlap_for_output applied on a node which is not a tensor output. "
            "Return its result from forward.",
        )
    if len(returned) > 1:
        raise _error(
            node,
            "poptorch.set_overlap_for_output cannot be used with a tensor that is returned twice. "
            "Return it once.",
        )
    if any(user.op == "call_function" for user in node.users):
        raise _error(
            node,
            "poptorch.set_overlap_for_output must be the last op applied to an output, which is "
            "not the case here. Return its result without further operations.",
        )


def _error(node: fx.Node, text: str) -> Error:
    place = record_of(node).source
    return compiler_error(f"{text} It is at {place}." if place else text)
