"""The sequence of steps of a compilation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from poptorch_emu.compile import graph_proto
from poptorch_emu.compile.executable import Executable, PlacedGraph
from poptorch_emu.compile.graph_log import log_graph
from poptorch_emu.compile.limits import (
    check_clipped_groups,
    check_processes,
)
from poptorch_emu.compile.output_limits import (
    check_anchors,
    check_return_periods,
)
from poptorch_emu.compile.planning import (
    optimise,
    place,
    schedule_of,
    take_inventory,
    without_schedule,
)
from poptorch_emu.compile.stored import cache, metadata_file
from poptorch_emu.compile.stored.executable_file import from_sections, stored_key
from poptorch_emu.compile.stored.key import Key, key_of
from poptorch_emu.compile.stride_check import warn_of_strides
from poptorch_emu.config import CompileConfig
from poptorch_emu.engine.engine_cut import engine_inventory
from poptorch_emu.engine.lower import Lowering
from poptorch_emu.errors import make_error
from poptorch_emu.ir.graph import Graph, SinkKind, SourceKind, source_of
from poptorch_emu.log import logger
from poptorch_emu.module_loading import without_garbage_collection
from poptorch_emu.passes import (
    anchors,
    functional,
)
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.memory.holdings import plan_memory
from poptorch_emu.plan.tiles.tile_contents import plan_tiles
from poptorch_emu.segments.overlapped_io import overlap_of, transfers_of
from poptorch_emu.trace.capture.initial_gradient import InitialGradient
from poptorch_emu.trace.capture.tracer import ArgumentsOf, Forward, Trace, trace_forward
from poptorch_emu.trace.fakes.result_metadata import ResultMetadata
from poptorch_emu.trace.recording.regions import HostFunction
from poptorch_emu.trace.refusals import strict
from poptorch_emu.troubleshooting import Topic
from poptorch_emu.update.formulas.optimizer_config import OptimizerConfig

# Steps of the progress bar in order. The caller runs the last one.
LOAD = "load"
STEPS = ("capture", "functionalise", "optimise", "place and schedule", "lower", LOAD)

NO_HOOKS = (lambda: None, lambda: None)


@dataclass(frozen=True)
class Request:
    """The model, the inputs and the options of a compilation.

    Attributes:
        model: the user's module.
        arguments: maps a function over the input tensors, and returns the arguments of a call.
        tensors: input tensors, as whole batches.
        optimizer: configuration of the user's optimiser; None in inference.
        parameters: names of the parameters in the optimiser's order.
        hooks: functions that are called before forward and after the trace.
    """

    model: torch.nn.Module
    arguments: ArgumentsOf
    tensors: Sequence[torch.Tensor]
    config: CompileConfig
    optimizer: OptimizerConfig | None = None
    parameters: tuple[str, ...] = ()
    hooks: tuple[Callable[[], None], Callable[[], None]] = NO_HOOKS


# Adds calls of the host to a graph before its placement, and returns the functions by name.
Observe = Callable[[Graph], Mapping[str, HostFunction]]

# Returns the executable of a request, compiled or from elsewhere.
MakeExecutable = Callable[[Request, Callable[[str], None]], Executable]


@without_garbage_collection()
def compile_model(
    request: Request, on_step: Callable[[str], None] = lambda step: None
) -> Executable:
    """Returns the executable of `request.model`, from the cache if it is there.

    Raises:
        AssertionError: this is one of several processes, and cannot write to the cache's folder.
        Error: the model cannot be captured or does not fit the options.
    """
    config = request.config
    check_processes(config)
    check_return_periods(config)
    if request.optimizer is not None:
        check_clipped_groups(request.optimizer, config)
    cache.make_folder(config.cache_dir)
    metadata_path = metadata_file.path_of(config, request.model, request.tensors)
    forward, key = _capture_with(metadata_file.find(metadata_path), request, on_step)
    metadata_file.keep(metadata_path, forward)
    if strict.is_on():
        strict.check(forward.complete.graph)
    with cache.only_one(config.cache_dir, key, config.num_processes):
        executable = cache.find(key, config, forward)
        if executable is None:
            executable = _compile(request, on_step, forward, key)
            cache.keep(executable)
    graph_proto.export(executable)
    return executable


@without_garbage_collection()
def compile_observed(request: Request, observe: Observe) -> Executable:
    """Returns a newly compiled executable with the host calls that `observe` adds.

    Raises:
        Error: the model cannot be captured or does not fit the options.
    """

    def on_step(_: str) -> None:
        pass

    return _compile(request, on_step, *capture(request, on_step), observe)


def _compile(
    request: Request,
    on_step: Callable[[str], None],
    forward: Forward,
    key: Key,
    observe: Observe = lambda _: {},
) -> Executable:
    """Returns the executable of a recorded model."""
    config, recorded = request.config, forward.complete
    on_step(STEPS[1])
    graph = functional.run(recorded.graph, recorded.fake_mode, recorded.memo)
    warn_of_strides(graph)
    overlapped = overlap_of(graph, config)
    on_step(STEPS[2])
    graph = optimise(graph, config)
    functions = observe(graph)
    recorded = replace(recorded, host_functions={**recorded.host_functions, **functions})
    log_graph(graph)
    on_step(STEPS[3])
    placed = place(graph, config)
    inventory = take_inventory(
        graph,
        placed,
        schedule_of(placed, config),
        overlapped,
        config,
        request.optimizer,
        request.parameters,
    )
    on_step(STEPS[4])
    return lower(request, key, recorded, inventory)


def load_model(
    sections: Mapping[str, bytes],
    name: str,
    request: Request,
    on_step: Callable[[str], None] = lambda step: None,
) -> Executable:
    """Returns the executable in a file for `request.model`, after recording `forward` only.

    Args:
        sections: sections of the file, by name.
        name: name of the file for messages.
        request: the same request as for a compilation.
        on_step: function that is called at the beginning of each step.

    Raises:
        Error: the file belongs to another model, or to other options or inputs.
    """
    forward, key = capture(request, on_step)
    stored = stored_key(sections)
    difference = stored.difference(key)
    if difference:
        raise make_error(
            f"{name} holds an executable that does not fit this model: {difference}. Wrap the same "
            "model with the same options and optimizer as when it was saved, or compile it again; "
            f"{Topic.WRONG_EXECUTABLE}"
        )
    return from_sections(sections, stored, request.config, forward)


def capture(
    request: Request,
    on_step: Callable[[str], None],
    metadata: Mapping[str, ResultMetadata] | None = None,
) -> tuple[Forward, Key]:
    """Returns the recorded `forward`, and the key of its program."""
    on_step(STEPS[0])
    forward = _record(request, metadata)
    optimizer, parameters = request.optimizer, request.parameters
    return forward, key_of(forward, request.config, request.tensors, optimizer, parameters)


def _capture_with(
    metadata: Mapping[str, ResultMetadata] | None, request: Request, on_step: Callable[[str], None]
) -> tuple[Forward, Key]:
    """Captures with metadata from a file, and again without them if that fails.

    An error of the model itself is raised once: it is no fault of the file.
    """
    try:
        return capture(request, on_step, metadata)
    except Exception as fault:
        if not metadata:
            raise
        problem = f"{type(fault).__name__}: {fault}"
    found = capture(request, on_step)
    logger.warning(
        "Executable cache: the cache's folder holds shapes and types of this model's results, "
        "with which capturing the model failed; it succeeded without them. %s",
        problem,
    )
    return found


def _record(request: Request, metadata: Mapping[str, ResultMetadata] | None) -> Forward:
    initial_gradient = InitialGradient.of(request.optimizer)
    return trace_forward(
        request.model, request.arguments, request.config, initial_gradient, request.hooks, metadata
    )


def plan_model(request: Request, *, ignores_schedule: bool = False) -> Inventory:
    """Returns the inventory of a model without lowering it.

    The schedule has only the micro-batches that are needed to show all different cycles.

    Args:
        request: the request; its parameters and tensors may be on the meta device.
        ignores_schedule: whether a pipeline runs one micro-batch at a time on the stages of its
            blocks, because another schedule may not fit them.

    Raises:
        Error: the model cannot be captured or does not fit the options.
    """
    config = without_schedule(request.config) if ignores_schedule else request.config
    forward = _record(request, None)
    graph = functional.run(
        forward.complete.graph, forward.complete.fake_mode, forward.complete.memo
    )
    overlapped = overlap_of(graph, config)
    graph = optimise(graph, config)
    placed = place(graph, config, is_scheduled=not ignores_schedule, is_plan=True)
    schedule = schedule_of(placed, config, is_short=True)
    return take_inventory(
        graph, placed, schedule, overlapped, config, request.optimizer, request.parameters
    )


def lower(
    request: Request,
    key: Key,
    recorded: Trace,
    inventory: Inventory,
) -> Executable:
    """Returns the executable of a placed and scheduled graph."""
    config, graph, placed = request.config, inventory.graph, inventory.placed
    of_engine = engine_inventory(inventory, request.optimizer, request.parameters)
    lowering = Lowering(of_engine, request.optimizer)
    lowering.run([tensor.dim() > 0 for tensor in request.tensors])
    memory, transfers = plan_memory(inventory), transfers_of(inventory.overlapped, inventory.cut)
    tiles = plan_tiles(inventory, memory)
    names = {*anchors.tensor_names(graph, config.names_modules), *lowering.window_names}
    check_anchors(config, lowering.anchors, names)
    return Executable(
        program=lowering.program,
        config=config,
        key=key,
        look_up=lambda: PlacedGraph(graph, placed, memory, transfers, tiles),
        schedule=inventory.schedule,
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
        batch_counts=recorded.batch_counts,
        guards=recorded.guards,
        scaling_limits=recorded.scaling_limits,
        shortages=tiles.shortages,
    )
