"""A graph that is being recorded, with the tensors that its operations return."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import fx

from poptorch_emu.ir.graph import Graph, Source, SourceKind, source_of
from poptorch_emu.ir.record import NodeRecord


@dataclass
class Scope:
    """A graph that is being recorded, and its tensors.

    Attributes:
        captured: tensors of outer scopes that the operations read, in the order of first use. Each
            has a source INPUT; their numbers follow `num_parameters` others.
        nodes: tensor and node by the tensor's id. The tensor is kept so that its id stays unique.
    """

    graph: Graph
    num_parameters: int = 0
    captured: list[torch.Tensor] = field(default_factory=list)
    nodes: dict[int, tuple[torch.Tensor, fx.Node]] = field(default_factory=dict)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Tensors that have a node in this graph."""
        return [value for value, _ in self.nodes.values()]

    def captured_by(self, node: fx.Node) -> torch.Tensor | None:
        """Returns the outer tensor that a source captures; None for a parameter."""
        number = int(source_of(node).name) - self.num_parameters
        return self.captured[number] if number >= 0 else None

    def find(self, value: torch.Tensor) -> fx.Node | None:
        """Returns the node of `value` in this graph, or None."""
        entry = self.nodes.get(id(value))
        return entry[1] if entry else None

    def add_source(self, source: Source, value: torch.Tensor, record: NodeRecord) -> fx.Node:
        """Makes `value` a placeholder of the graph."""
        node = self.graph.add_source(source, value, record)
        self.nodes[id(value)] = (value, node)
        return node

    def swap_with_copy(self, value: torch.Tensor, copy: torch.Tensor) -> None:
        """Exchanges a source's tensor and its copy, which moves in front of all operations."""
        (_, source), (_, copied) = self.nodes[id(value)], self.nodes[id(copy)]
        self.graph.operations[0].prepend(copied)
        source.replace_all_uses_with(copied, lambda user: user is not copied)
        self.nodes[id(value)], self.nodes[id(copy)] = (value, copied), (copy, source)

    def capture(self, value: torch.Tensor, record: NodeRecord) -> fx.Node:
        """Adds a tensor of an outer scope as a parameter."""
        number = self.num_parameters + len(self.captured)
        self.captured.append(value)
        return self.add_source(Source(SourceKind.INPUT, str(number)), value, record)
