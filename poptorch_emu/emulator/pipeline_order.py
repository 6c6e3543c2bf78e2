"""Choice of the order of a pipeline's stages.

PopTorch has no such option, because its pipelines are always grouped. Results do not depend on it.
"""

from __future__ import annotations

from poptorch_emu.config import PipelineOrder, TableConfig
from poptorch_emu.emulator import schedules
from poptorch_emu.emulator.given_values import check_options
from poptorch_emu.errors import make_error
from poptorch_emu.near_names import did_you_mean
from poptorch_emu.options import Options, PipelinedExecution, ShardedExecution


def set_schedule(options: Options, order: str | TableConfig) -> None:
    """Sets the order of the pipeline of the options' execution strategy (modelled).

    Call it after `options.setExecutionStrategy`. Results have the same bits in any order.

    Args:
        options: options that are not frozen, with a pipelined strategy.
        order: "grouped" (PopTorch's own), "interleaved" (one forward or one backward at a time,
            with a smaller stash) or "sequential" (one micro-batch at a time); or one of
            `emulator.schedules`, or its name. Such a schedule assigns stages to IPUs and ignores
            the IPUs of blocks, which then only separate the stages.

    Raises:
        AttributeError: the options are frozen.
        Error: `order` is unknown, or the strategy is not pipelined.

    Example:
        >>> options = poptorch.Options()
        >>> _ = options.Training.gradientAccumulation(8)
        >>> emulator.set_schedule(options, emulator.schedules.zero_bubble_v())
    """
    check_options(options)
    orders = [known.value for known in PipelineOrder]
    if isinstance(order, str) and order in schedules.NAMED:
        order = schedules.NAMED[order]()
    elif not isinstance(order, TableConfig) and order not in orders:
        raise make_error(
            f"Unknown order of a pipeline: {order!r}. Choose one of {[*orders, *schedules.NAMED]}, "
            f"or one of emulator.schedules.{did_you_mean(order, [*orders, *schedules.NAMED])}"
        )
    strategy = options._execution_strategy
    if not isinstance(strategy, PipelinedExecution) or isinstance(strategy, ShardedExecution):
        raise make_error(
            f"Only a pipeline has an order, but the strategy is {type(strategy).__name__}. Call "
            "options.setExecutionStrategy(poptorch.PipelinedExecution(...)) first."
        )
    if isinstance(order, TableConfig):
        strategy.set_order(TableConfig(order.name, order.stages_per_ipu, order.rows))
    else:
        strategy.set_order(PipelineOrder(order))
