"""Decides whether and how many micro-batches of a window are joined.

The decision depends on the graph and its sizes only, never on stages, replicas or workers. Joining
changes the order in which the sum of a gradient is computed, so that otherwise the bits would
depend on where micro-batches run.
"""

from __future__ import annotations

import torch
from torch import fx

from poptorch_emu.engine.engine_graph import EngineGraph
from poptorch_emu.engine.joining.joiner import joined
from poptorch_emu.ir.graph import Graph, SinkKind, tensors_of
from poptorch_emu.ir.operator_traits import traits_of
from poptorch_emu.torch_versions import OpOverload

# Maximum average size of a joined result in bytes. Up to this size the data of one operation stays
# in the cache of a core, and joining pays.
_MOST_BYTES_OF_A_RESULT = 288 * 2**10
# Maximum size of all joined results in bytes. Results that wait for backward need extra memory.
_MOST_BYTES = 48 * 2**20
# Minimum number of actions in a joined window. With fewer, some workers would have nothing to do,
# and a stream of results would pause. A small window is exempt, because waking a worker takes
# longer than running it.
_FEWEST_ACTIONS = 4
_BYTES_OF_A_SMALL_WINDOW = 512 * 2**10
# Maximum share of the operations of single micro-batches that may be left after joining.
_LARGEST_SHARE = 0.75


def join_micro_batches(code: EngineGraph) -> int:
    """Joins micro-batches of the graph; returns the number of joined micro-batches, or 0.

    Later rewrites see larger operations and do not have to know about micro-batches.
    """
    config = code.config
    window = config.num_micro_batches
    if window == 1 or not _is_joinable(code):
        return 0
    # The difference of two sizes excludes results that are sums, which do not grow with the number.
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
    """Returns the size in bytes of all results of a graph, without views."""
    return sum(
        value.nbytes
        for node in graph.operations
        if not traits_of(node.target).is_view
        for value in tensors_of([node])
    )


def _number_to_join(window: int, num_bytes: int, num_operations: int, fewest: int) -> int:
    """Returns the largest divisor of a window that keeps the limits.

    Args:
        window: number of micro-batches in the window.
        num_bytes: size of all results of one micro-batch, in bytes.
        num_operations: number of operations of one micro-batch.
        fewest: minimum number of actions in the joined window.
    """
    most_bytes = min(_MOST_BYTES, num_operations * _MOST_BYTES_OF_A_RESULT)
    return max(
        count
        for count in range(1, window + 1)
        if window % count == 0
        and (count == 1 or window // count >= fewest and count * num_bytes <= most_bytes)
    )


def _is_joinable(code: EngineGraph) -> bool:
    """Returns whether joining changes nothing that is visible outside except the order of sums.

    Joining is not possible if a micro-batch reads values that the one before it wrote, or if
    numbers are rounded in each micro-batch.
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
