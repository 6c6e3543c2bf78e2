"""Steps of a compilation before lowering: passes, placement, schedule and segments.

Nothing here needs the engine's program, so a plan can be made from shapes alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from poptorch_emu.compile.limits import (
    check_broadcast_buffers,
    check_exchanges,
    check_num_ipus,
    check_schedule,
    check_trained_and_written,
    check_written_variables,
)
from poptorch_emu.compile.output_limits import check_pipelined_outputs
from poptorch_emu.config import CompileConfig, PipelineOrder, StrategyConfig, StrategyKind
from poptorch_emu.enums import OverlapMode
from poptorch_emu.errors import compiler_error
from poptorch_emu.ir.graph import Graph, Sink, Source
from poptorch_emu.ir.verify import verify
from poptorch_emu.passes import (
    anchors,
    averages,
    constant_folding,
    half_operations,
    memory_order,
    output_types,
    random_numbers,
    simplify,
    stochastic_rounding,
)
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.schedule.layout import enough_micro_batches
from poptorch_emu.schedule.levels import stage_levels
from poptorch_emu.schedule.make import ScheduleKind, make_schedule
from poptorch_emu.schedule.partition import Partition, partition
from poptorch_emu.schedule.schedule import Schedule
from poptorch_emu.schedule.tables.named import make_table, placement
from poptorch_emu.segments.links import LinkPlan, cuts_stashes, plan_links
from poptorch_emu.segments.model_variables import model_variables
from poptorch_emu.segments.phases import check_phases
from poptorch_emu.segments.recomputation import recomputation_of, recomputed_operations
from poptorch_emu.segments.replica_equal import replica_equal_values
from poptorch_emu.segments.segmented_graph import SegmentedGraph, cut
from poptorch_emu.update.formulas.optimizer_config import OptimizerConfig
from poptorch_emu.update.parts.update_plan import plan_update

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


def optimise(graph: Graph, config: CompileConfig) -> Graph:
    """Returns the graph after all passes."""
    graph = memory_order.run(graph)
    graph = random_numbers.run(graph)
    graph = simplify.run(graph)
    graph = constant_folding.run(graph)
    graph = averages.run(graph)
    graph = anchors.run(graph, config.anchors, config.names_modules)
    if config.rounds_stochastically:
        graph = stochastic_rounding.run(graph)
    else:
        graph = half_operations.run(graph)
    graph = output_types.run(graph)
    return verify(graph)


def place(
    graph: Graph, config: CompileConfig, *, is_scheduled: bool = True, is_plan: bool = False
) -> Partition:
    """Returns the stage of each operation, after all checks of the placement.

    Args:
        graph: graph of forward and backward, without operations that change their arguments.
        config: configuration of the compilation.
        is_scheduled: whether the model will run with this schedule. Otherwise the numbers of IPUs
            and micro-batches are not checked.
        is_plan: whether the model is only planned, so that it may use more IPUs than one process.
    """
    placed = on_ipus(partition(graph, config.strategy), config.strategy)
    return check_placed(graph, placed, config, is_scheduled=is_scheduled, is_plan=is_plan)


def check_placed(
    graph: Graph,
    placed: Partition,
    config: CompileConfig,
    *,
    is_scheduled: bool = True,
    is_plan: bool = False,
) -> Partition:
    """Returns the stages of a graph after all their checks; the arguments are those of `place`."""
    if is_scheduled:
        check_num_ipus(placed, config, is_plan=is_plan)
    check_written_variables(graph, placed)
    check_trained_and_written(graph, config)
    check_broadcast_buffers(graph, config)
    check_exchanges(graph, config)
    check_phases(placed, config)
    if config.strategy.kind is StrategyKind.PIPELINED:
        if is_scheduled and config.strategy.table is None:
            check_schedule(placed, config)
        check_pipelined_outputs(placed, config)
    return placed


def without_schedule(config: CompileConfig) -> CompileConfig:
    """Returns a configuration whose pipelines run one micro-batch at a time."""
    strategy = replace(config.strategy, table=None, order=PipelineOrder.SEQUENTIAL)
    return replace(config, strategy=strategy)


def on_ipus(placed: Partition, strategy: StrategyConfig) -> Partition:
    """Returns stages on the IPUs of the strategy's table; unchanged if it has no table."""
    if strategy.table is None:
        return placed
    with _in_words():
        ipu_of_stage = placement(strategy.table, placed.num_stages)
    return replace(placed, ipu_ids=tuple(sorted(set(ipu_of_stage))), ipu_of_stage=ipu_of_stage)


@contextmanager
def _in_words() -> Iterator[None]:
    """Converts a ValueError about a table to an error of the compiler."""
    try:
        yield
    except ValueError as fault:
        raise compiler_error(f"The schedule does not fit: {fault}") from fault


def schedule_of(placed: Partition, config: CompileConfig, *, is_short: bool = False) -> Schedule:
    """Returns the schedule of the stages.

    Args:
        placed: placement of the stages.
        config: configuration with the execution strategy.
        is_short: whether to limit the micro-batches to a number that shows all different cycles of
            a pipeline.
    """
    count, table = config.num_micro_batches, config.strategy.table
    if table is not None:
        with _in_words():
            return make_table(table, placed.num_stages, count, config.is_training)
    kind = schedule_kind(config.strategy)
    assert kind is not None, "what is no table has a kind"
    return make_schedule(
        kind,
        placed.ipu_of_stage,
        min(count, enough_micro_batches(placed.num_stages)) if is_short else count,
        config.is_training,
        stage_levels(placed) if config.strategy.is_phased else (),
    )


def schedule_kind(strategy: StrategyConfig) -> ScheduleKind | None:
    """Returns the kind of schedule of a strategy; None if it uses a table."""
    if strategy.table is not None:
        return None
    if strategy.kind is StrategyKind.PIPELINED:
        return _PIPELINES[strategy.order]
    return _SCHEDULES[strategy.kind]


def segments_of(
    graph: Graph, placed: Partition, schedule: Schedule, config: CompileConfig
) -> SegmentedGraph:
    """Returns the segments of a placed graph; of the schedule, only the kinds of actions count."""
    recomputed = recomputed_operations(graph, placed, recomputation_of(config, placed))
    return cut(graph, placed, config.is_training, recomputed, schedule.kinds)


def take_inventory(
    graph: Graph,
    placed: Partition,
    schedule: Schedule,
    overlapped: Mapping[Source | Sink, OverlapMode],
    config: CompileConfig,
    optimizer: OptimizerConfig | None,
    parameters: tuple[str, ...],
    segments: SegmentedGraph | None = None,
) -> Inventory:
    """Returns the segments of a placed graph with their links, update and variables.

    The result of `segments_of` may be given, because it does not depend on the replicas.
    """
    if segments is None:
        segments = segments_of(graph, placed, schedule, config)
    variables = model_variables(graph, config)
    update = None
    if optimizer is not None:
        update = plan_update(
            segments, placed, variables, config, optimizer, parameters, graph.averages
        )
        variables |= {state.name: state for state in update.states}
    return Inventory(
        graph=graph,
        cut=segments,
        links=_links(graph, segments, placed, schedule, config),
        overlapped=overlapped,
        placed=placed,
        schedule=schedule,
        config=config,
        update=update,
        variables=variables,
    )


def with_schedule(
    base: Inventory, placed: Partition, schedule: Schedule, config: CompileConfig
) -> Inventory:
    """Returns an inventory with the same segments, and links for another schedule."""
    links = _links(base.graph, base.cut, placed, schedule, config)
    return replace(base, placed=placed, config=config, schedule=schedule, links=links)


def _links(
    graph: Graph,
    segments: SegmentedGraph,
    placed: Partition,
    schedule: Schedule,
    config: CompileConfig,
) -> tuple[LinkPlan, ...]:
    """Returns the links; only a config that cuts stashes asks which values replicas share."""
    equal = replica_equal_values(graph, config) if cuts_stashes(config) else frozenset()
    return plan_links(segments, placed, schedule, config, equal)
