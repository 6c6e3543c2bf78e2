"""The sequence of a compilation, readable as a table of contents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

import torch
from torch import fx

from poptorch_emu.compile import graph_proto
from poptorch_emu.compile.engine_cut import Cut, engine_cut
from poptorch_emu.compile.executable import Executable, PlacedGraph
from poptorch_emu.compile.graph_log import log_graph
from poptorch_emu.compile.limits import (
    check_broadcast_buffers,
    check_clipped_groups,
    check_num_ipus,
    check_processes,
    check_schedule,
    check_trained_and_written,
    check_written_variables,
)
from poptorch_emu.compile.lower import Lowering
from poptorch_emu.compile.output_limits import (
    check_anchors,
    check_pipelined_outputs,
    check_return_periods,
)
from poptorch_emu.compile.stored import cache, forms_file
from poptorch_emu.compile.stored.executable_file import from_sections, stored_key
from poptorch_emu.compile.stored.key import Key, key_of
from poptorch_emu.config import CompileConfig, PipelineOrder, StrategyConfig, StrategyKind
from poptorch_emu.enums import OverlapMode
from poptorch_emu.errors import make_error
from poptorch_emu.ir.graph import Graph, Sink, SinkKind, Source, SourceKind, source_of
from poptorch_emu.ir.verify import verify
from poptorch_emu.passes import (
    anchors,
    constant_folding,
    functional,
    half_convolutions,
    output_types,
    random_numbers,
    simplify,
    stochastic_rounding,
)
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.memory.holdings import plan_memory
from poptorch_emu.plan.tiles.tile_contents import plan_tiles
from poptorch_emu.schedule.levels import stage_levels
from poptorch_emu.schedule.make import ScheduleKind, make_schedule
from poptorch_emu.schedule.partition import Partition, partition
from poptorch_emu.schedule.schedule import Schedule
from poptorch_emu.segments.links import plan_links
from poptorch_emu.segments.overlapped_io import overlap_of, transfers_of
from poptorch_emu.segments.phases import check_phases
from poptorch_emu.segments.recomputation import (
    recomputation_of,
    recomputed_operations,
    views_of_weights,
)
from poptorch_emu.segments.replica_equal import replica_equal_values
from poptorch_emu.segments.row_gradients import row_gradients
from poptorch_emu.segments.segmented_graph import cut
from poptorch_emu.trace import strict
from poptorch_emu.trace.result_forms import Forms
from poptorch_emu.trace.seed import Seed
from poptorch_emu.trace.tracer import ArgumentsOf, Forward, Trace, trace_forward
from poptorch_emu.update.config import OptimizerConfig

# What the progress bar shows: a step and what fraction of a compilation it usually is.
STEPS = ("capture", "functionalise", "optimise", "place and schedule", "lower")

_PIPELINES = {
    PipelineOrder.GROUPED: ScheduleKind.GROUPED,
    PipelineOrder.INTERLEAVED: ScheduleKind.INTERLEAVED,
    PipelineOrder.SEQUENTIAL: ScheduleKind.SEQUENTIAL,
}
_SCHEDULES = {
    StrategyKind.SHARDED: ScheduleKind.SHARDED,
    StrategyKind.SERIAL_PHASED: ScheduleKind.SERIAL_PHASED,
    StrategyKind.PARALLEL_PHASED: ScheduleKind.PARALLEL_PHASED,
}


@dataclass(frozen=True)
class Request:
    """What is to be compiled.

    Attributes:
        model: the user's module.
        arguments: makes the arguments of a call from a function of each input tensor.
        tensors: the input tensors, whole batches.
        optimizer: made by the caller from the user's optimiser, in training.
        parameters: names of the parameters in the order in which the optimiser knows them.
        hooks: called before forward and after the trace.
    """

    model: torch.nn.Module
    arguments: ArgumentsOf
    tensors: Sequence[torch.Tensor]
    config: CompileConfig
    optimizer: OptimizerConfig | None = None
    parameters: tuple[str, ...] = ()
    hooks: tuple[Callable[[], None], Callable[[], None]] = (lambda: None, lambda: None)


# Compiles a request, or finds its executable elsewhere.
MakeExecutable = Callable[[Request, Callable[[str], None]], Executable]


def compile_model(
    request: Request, on_step: Callable[[str], None] = lambda step: None
) -> Executable:
    """Returns the executable of `request.model`, from the cache if it is there.

    Raises:
        AssertionError: the folder of the cache cannot be written to.
        Error: the model cannot be captured or does not fit the options.
    """
    config = request.config
    check_processes(config)
    check_return_periods(config)
    if request.optimizer is not None:
        check_clipped_groups(request.optimizer, config)
    cache.check_folder(config.cache_dir)
    forms_path = forms_file.path_of(config, request.model, request.tensors)
    forward, key = capture(request, on_step, forms_file.find(forms_path))
    forms_file.keep(forms_path, forward)
    if strict.is_on():
        strict.check(forward.complete.graph)
    found = cache.find(key, config, forward)
    if found is not None:
        graph_proto.export(found)
        return found
    recorded = forward.complete
    on_step(STEPS[1])
    graph = functional.run(recorded.graph, recorded.fake_mode, recorded.memo)
    overlapped = overlap_of(graph, config)
    on_step(STEPS[2])
    graph = optimise(graph, config)
    log_graph(graph)
    on_step(STEPS[3])
    placed, schedule = place(graph, config)
    on_step(STEPS[4])
    executable = lower(request, key, recorded, graph, overlapped, placed, schedule)
    cache.keep(executable)
    graph_proto.export(executable)
    return executable


def load_model(
    sections: Mapping[str, bytes],
    name: str,
    request: Request,
    on_step: Callable[[str], None] = lambda step: None,
) -> Executable:
    """Returns the executable of a file for `request.model`; only `forward` is recorded for it.

    Args:
        sections: of the file.
        name: of the file, for messages.
        request: as for a compilation.
        on_step: called at the beginning of each step.

    Raises:
        Error: the file holds the executable of another model, of other options or inputs.
    """
    forward, key = capture(request, on_step)
    stored = stored_key(sections)
    difference = stored.difference(key)
    if difference:
        raise make_error(
            f"{name} holds an executable that does not fit this model: {difference}. Wrap the same "
            "model with the same options and optimizer as when it was saved, or compile it again."
        )
    return from_sections(sections, stored, request.config, forward)


def capture(
    request: Request, on_step: Callable[[str], None], forms: Mapping[str, Forms] | None = None
) -> tuple[Forward, Key]:
    """Returns the recorded `forward`, and what its program depends on."""
    on_step(STEPS[0])
    forward = trace_forward(
        request.model,
        request.arguments,
        request.config,
        Seed.of(request.optimizer),
        request.hooks,
        forms,
    )
    optimizer, parameters = request.optimizer, request.parameters
    return forward, key_of(forward, request.config, request.tensors, optimizer, parameters)


def optimise(graph: Graph, config: CompileConfig) -> Graph:
    """Returns the graph after all passes."""
    graph = random_numbers.run(graph)
    graph = simplify.run(graph)
    graph = constant_folding.run(graph)
    graph = anchors.run(graph, config.anchors, config.names_modules)
    if config.rounds_stochastically:
        graph = stochastic_rounding.run(graph)
    else:
        graph = half_convolutions.run(graph)
    graph = output_types.run(graph)
    return verify(graph)


def place(graph: Graph, config: CompileConfig) -> tuple[Partition, Schedule]:
    """Returns which stage runs what, and when."""
    is_pipelined = config.strategy.kind is StrategyKind.PIPELINED
    placed = partition(graph, is_pipelined)
    check_num_ipus(placed, config)
    check_written_variables(graph, placed)
    check_trained_and_written(graph, config)
    check_broadcast_buffers(graph, config)
    check_phases(placed, config)
    if is_pipelined:
        check_schedule(placed, config)
        check_pipelined_outputs(placed, config)
    num_micro_batches = (
        config.gradient_accumulation if config.is_training else config.device_iterations
    )
    schedule = make_schedule(
        _schedule_kind(config.strategy),
        placed.ipu_of_stage,
        num_micro_batches,
        config.is_training,
        stage_levels(placed) if config.strategy.is_phased else (),
    )
    return placed, schedule


def _schedule_kind(strategy: StrategyConfig) -> ScheduleKind:
    if strategy.kind is StrategyKind.PIPELINED:
        return _PIPELINES[strategy.order]
    return _SCHEDULES[strategy.kind]


def lower(
    request: Request,
    key: Key,
    recorded: Trace,
    graph: Graph,
    overlapped: Mapping[Source | Sink, OverlapMode],
    placed: Partition,
    schedule: Schedule,
) -> Executable:
    """Returns the executable of a placed and scheduled graph."""
    config = request.config
    equal_values = replica_equal_values(graph, config)
    by_rows = row_gradients(graph, config, request.optimizer)

    def cut_graph(recomputed: Set[fx.Node]) -> Cut:
        segments = cut(graph, placed, config.is_training, recomputed, by_rows)
        return segments, plan_links(segments, placed, schedule, config, equal_values)

    recomputed = recomputed_operations(graph, placed, recomputation_of(config, placed))
    segments, links = of_machine = cut_graph(recomputed)
    of_engine = engine_cut(config, of_machine, lambda: cut_graph(views_of_weights(graph, placed)))
    lowering = Lowering(graph, *of_engine, placed, schedule, config, request.optimizer)
    lowering.run([tensor.dim() > 0 for tensor in request.tensors], request.parameters)
    inventory = Inventory(
        graph=graph,
        cut=segments,
        links=links,
        overlapped=frozenset(overlapped),
        placed=placed,
        schedule=schedule,
        config=config,
        update=lowering.update,
        variables=lowering.variables,
    )
    memory, transfers = plan_memory(inventory), transfers_of(overlapped, segments)
    tiles = plan_tiles(inventory, memory)
    names = {*anchors.tensor_names(graph, config.names_modules), *lowering.window_names}
    check_anchors(config, lowering.anchors, names)
    return Executable(
        program=lowering.program,
        config=config,
        key=key,
        look_up=lambda: PlacedGraph(graph, placed, memory, transfers, tiles),
        schedule=schedule,
        outputs=recorded.outputs,
        host_outputs=recorded.host_outputs,
        num_outputs=sum(sink.kind is SinkKind.OUTPUT for sink in graph.sinks),
        written_inputs=tuple(lowering.written_inputs),
        variables=lowering.variables,
        scalars=lowering.scalars,
        segment_names=tuple(lowering.segment_names),
        ipus_per_replica=max(placed.ipu_ids) + 1,
        is_random=any(source_of(node).kind is SourceKind.RNG for node in graph.sources),
        anchors=tuple(lowering.anchors),
        tensor_names=tuple(sorted(names)),
        host_functions=recorded.host_functions,
        shortages=tiles.shortages,
    )
