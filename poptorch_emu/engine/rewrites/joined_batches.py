"""Whether and how many micro-batches of a window are joined.

The graph and its sizes decide, never stages, replicas or workers: the sum of a gradient over joined
micro-batches is made in another order than over single ones, and no bit may depend on where they
run.
"""

from __future__ import annotations

import torch
from torch import fx

from poptorch_emu.engine.engine_graph import EngineGraph
from poptorch_emu.engine.joining.joiner import joined
from poptorch_emu.ir.graph import Graph, SinkKind, tensors_of
from poptorch_emu.ir.operator_traits import traits_of
from poptorch_emu.torch_versions import OpOverload

# Bytes of a joined result, on average, up to which joining gives something: what an operation reads
# and writes is then in the cache of a core.
_MOST_BYTES_OF_A_RESULT = 288 * 2**10
# Bytes of all joined results. Those that wait for backward are memory that nothing else needs.
_MOST_BYTES = 48 * 2**20
# So many actions are left of a window, for as many workers, and for a stream of results that pauses
# between them; but for updates of so few bytes, which take less time than to wake a worker.
_FEWEST_ACTIONS = 4
_BYTES_OF_A_SMALL_WINDOW = 512 * 2**10
# Of the operations of single micro-batches, the share that may be left.
_LARGEST_SHARE = 0.75


def join_micro_batches(code: EngineGraph) -> int:
    """Makes the graph that of several micro-batches; returns how many, or 0.

    Each rewrite behind it sees larger operations, and nothing of micro-batches.
    """
    config = code.config
    window = config.num_micro_batches
    if window == 1 or not _is_joinable(code):
        return 0
    # What sums have is the same for any number.
    num_bytes = bytes_of_results(joined(code, 2).graph) - bytes_of_results(code.graph)
    is_small = config.is_training and window * num_bytes <= _BYTES_OF_A_SMALL_WINDOW
    fewest = 1 if is_small else _FEWEST_ACTIONS
    count = _number_to_join(window, num_bytes, len(code.graph.operations), fewest)
    if count == 1:
        return 0
    made = joined(code, count)
    if len(made.graph.operations) > _LARGEST_SHARE * count * len(code.graph.operations):
        return 0
    code.become(made)
    return count


def bytes_of_results(graph: Graph) -> int:
    """Returns how many bytes all results of a micro-batch have that are no views."""
    return sum(
        value.nbytes
        for node in graph.operations
        if not traits_of(node.target).is_view
        for value in tensors_of([node])
    )


def _number_to_join(window: int, num_bytes: int, num_operations: int, fewest: int) -> int:
    """Returns the largest number that divides a window and keeps the limits.

    Args:
        window: how many micro-batches it has.
        num_bytes: of all results of one.
        num_operations: of one.
        fewest: how many actions are to be left at least.
    """
    most_bytes = min(_MOST_BYTES, num_operations * _MOST_BYTES_OF_A_RESULT)
    return max(
        count
        for count in range(1, window + 1)
        if window % count == 0
        and (count == 1 or window // count >= fewest and count * num_bytes <= most_bytes)
    )


def _is_joinable(code: EngineGraph) -> bool:
    """Returns whether nothing outside can tell, apart from the order of sums.

    Not where micro-batches write what the next one reads, and where numbers are rounded for each of
    them.
    """
    config, optimizer = code.config, code.optimizer
    if config.rounds_stochastically or config.is_running_mean:
        return False
    if optimizer is not None and optimizer.accum_type != torch.float32:
        return False
    if any(sink.kind in (SinkKind.VARIABLE, SinkKind.INPUT) for sink in code.graph.sinks):
        return False
    graphs = [code.graph, *code.graph.regions.values()]
    return all(_is_quiet(node) for graph in graphs for node in graph.operations)


def _is_quiet(node: fx.Node) -> bool:
    target: OpOverload = node.target  # type: ignore[assignment]
    traits = traits_of(target)
    return not (traits.is_seen_outside or traits.is_foreign or target._schema.is_mutable)
