"""Choosing the order in which the stages of a pipeline take turns.

PopTorch has no option for it: its pipelines are grouped. Results are the same in any order.
"""

from __future__ import annotations

from poptorch_emu.config import PipelineOrder
from poptorch_emu.errors import make_error
from poptorch_emu.options import Options, PipelinedExecution, ShardedExecution


def set_schedule(options: Options, order: str) -> None:
    """Chooses the order of the pipeline of the options' execution strategy (modelled).

    Call it after `options.setExecutionStrategy`.

    Args:
        options: not yet frozen, with a pipelined strategy.
        order: "grouped" (PopTorch's own), "interleaved" (one forward or one backward at a time,
            with a smaller stash) or "sequential" (one micro-batch at a time).

    Raises:
        AttributeError: the options are frozen.
        Error: there is no such order, or the strategy is not pipelined.
    """
    options._check_unfrozen()
    orders = [known.value for known in PipelineOrder]
    if order not in orders:
        raise make_error(f"Unknown order of a pipeline: {order!r}. Choose one of {orders}.")
    strategy = options._execution_strategy
    if not isinstance(strategy, PipelinedExecution) or isinstance(strategy, ShardedExecution):
        raise make_error(
            f"Only a pipeline has an order, but the strategy is {type(strategy).__name__}. Call "
            "options.setExecutionStrategy(poptorch.PipelinedExecution(...)) first."
        )
    strategy._order = PipelineOrder(order)
