"""A copy of the placed graph that is rewritten for the host; the machine's graph is unchanged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

from poptorch_emu.config import CompileConfig
from poptorch_emu.ir.graph import Graph, SinkKind, SourceKind, record_of, source_of
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.schedule.partition import Partition
from poptorch_emu.update.formulas.optimizer_config import OptimizerConfig

aten = torch.ops.aten

# Operators whose result shows the elements of the argument in the same order.
VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)


@dataclass
class EngineGraph:
    """Operations that can be changed, and their stages.

    Attributes:
        config: configuration of the compilation.
        optimizer: configuration of the optimiser; `None` in inference.
        written: names of the variables that a call changes.
        made: added nodes whose values are the same in every call.
        joined: number of micro-batches that the graph computes at once.
    """

    graph: Graph
    placed: Partition
    config: CompileConfig
    optimizer: OptimizerConfig | None
    written: frozenset[str]
    made: set[fx.Node] = field(default_factory=set)
    joined: int = 1

    @classmethod
    def copy_of(cls, inventory: Inventory, optimizer: OptimizerConfig | None) -> EngineGraph:
        """Returns a copy of the operations of a placed graph."""
        graph, placed = inventory.graph, inventory.placed
        copy = fx.Graph()
        known: dict[fx.Node, fx.Node] = {}
        for node in graph.fx.nodes:
            known[node] = copy.node_copy(node, known.__getitem__)
        port_of = {known[node]: port for node, port in placed.port_of.items()}
        written = {sink.name for sink in graph.sinks if sink.kind is SinkKind.VARIABLE}
        return cls(
            replace(graph, fx=copy, constants=dict(graph.constants)),
            replace(placed, port_of=port_of),
            inventory.config,
            optimizer,
            frozenset(written),
        )

    def become(self, other: EngineGraph) -> None:
        """Replaces the operations and their places by those of another graph."""
        self.graph, self.placed, self.made = other.graph, other.placed, other.made
        self.joined = other.joined

    def insert(
        self,
        before: fx.Node,
        target: Any,
        args: Any,
        value: torch.Tensor,
        kwargs: Mapping[str, Any] = MappingProxyType({}),
    ) -> fx.Node:
        """Adds an operation before another one and on its stage; `value` is like the new result."""
        with self.graph.fx.inserting_before(before):
            node = self.graph.add_operation(target, args, dict(kwargs), value, record_of(before))
        self.placed.port_of[node] = self.placed.port_of[before]
        if all(self.is_fixed(each) or each in self.made for each in node.all_input_nodes):
            self.made.add(node)
        return node

    def is_fixed(self, node: Any) -> bool:
        """Returns whether a value is a source that no call changes, which any stage can read."""
        if not isinstance(node, fx.Node) or node.op != "placeholder":
            return False
        source = source_of(node)
        is_variable = source.kind is SourceKind.VARIABLE and source.name not in self.written
        return is_variable or source.kind is SourceKind.CONSTANT

    def is_made_once(self, node: Any) -> bool:
        """Returns whether a value depends on fixed sources only, through casts and added nodes."""
        if isinstance(node, fx.Node) and node.target is aten._to_copy.default:
            return self.is_made_once(node.args[0])
        return self.is_fixed(node) or node in self.made


def is_single(node: Any) -> bool:
    """Returns whether a value is a non-empty float32 tensor."""
    value = node.meta["val"]
    return bool(value.dtype == torch.float32 and math.prod(value.shape) > 0)
