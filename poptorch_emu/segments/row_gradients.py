"""Gradients that are zero but for some rows: those of embeddings.

Such a gradient is as large as the weight, and a micro-batch fills a few rows of it. Where nothing
reads it but its sum, its rows are added to the sum and the gradient is never made. The sum has the
same bits either way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from poptorch_emu.config import CompileConfig
from poptorch_emu.ir.graph import Graph, SinkKind
from poptorch_emu.update.formulas.optimizer_config import OptimizerConfig

aten = torch.ops.aten


@dataclass(frozen=True)
class RowGradient:
    """The gradient of a weight whose rows were looked up.

    Attributes:
        rows: the gradient of each row that was looked up, (*lookups, width), float32 or float16.
        indices: which row that was, (*lookups), an integer.
        num_rows: of the weight.
        padding_index: whose gradient is zero whatever `rows` say; -1 for none.
    """

    rows: fx.Node
    indices: fx.Node
    num_rows: int
    padding_index: int


def row_gradients(
    graph: Graph, config: CompileConfig, optimizer: OptimizerConfig | None
) -> Mapping[fx.Node, RowGradient]:
    """Returns the gradients that are added row by row.

    Args:
        graph: with the gradients among its results.
        config: how sums are kept.
        optimizer: in training.
    """
    if not sums_are_whole(config, optimizer):
        return {}
    gradients = [node for sink, node in graph.results if sink.kind is SinkKind.GRADIENT]
    results = [node for _, node in graph.results]
    return {
        node: _row_gradient(node)
        for node in gradients
        if _is_of_rows(node) and len(node.users) == 1 and results.count(node) == 1
    }


def sums_are_whole(config: CompileConfig, optimizer: OptimizerConfig | None) -> bool:
    """Returns whether gradients are added to whole float32 sums.

    A running mean changes all of a sum, and a sum of which each replica holds a part is exchanged
    in each micro-batch.
    """
    if optimizer is None or optimizer.accum_type != torch.float32 or config.is_running_mean:
        return False
    return config.num_sharers == 1 or config.sharding.accumulator is None


def _is_of_rows(node: fx.Node) -> bool:
    """Returns whether `node` spreads rows over a gradient as they are."""
    if node.target is not aten.embedding_dense_backward.default:
        return False
    scales_by_frequency = node.args[4]
    return not scales_by_frequency and node.meta["val"].dtype in (torch.float32, torch.float16)


def _row_gradient(node: fx.Node) -> RowGradient:
    arguments: tuple[Any, ...] = node.args
    rows, indices, num_rows, padding_index, _ = arguments
    return RowGradient(rows, indices, num_rows, padding_index)
