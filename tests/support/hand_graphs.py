"""Graphs built by hand, and PyTorch's own interpreter to compute their results."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.node import map_arg

from poptorch_emu.ir.graph import Graph, Sink, SinkKind, Source, SourceKind, source_of
from poptorch_emu.ir.record import NodeRecord

RNG = torch.tensor([7, 3, 1, 0])


class HandGraph:
    """Adds nodes to `graph`; runs them on tensors without data to find dtypes and shapes.

    Attributes:
        record: record of the operations that are added next.
    """

    def __init__(self, fake_mode: FakeTensorMode | None = None) -> None:
        self.graph = Graph()
        self.record = NodeRecord()
        self.device = "meta" if fake_mode is None else "ipu:0"
        self._mode = fake_mode
        self._results: list[tuple[Sink, fx.Node]] = []

    def input(self, *shape: int, dtype: torch.dtype = torch.float32) -> fx.Node:
        number = sum(source_of(node).kind is SourceKind.INPUT for node in self.graph.sources)
        return self._source(Source(SourceKind.INPUT, str(number)), shape, dtype)

    def variable(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> fx.Node:
        return self._source(Source(SourceKind.VARIABLE, name), shape, dtype)

    def constant(self, name: str, value: torch.Tensor) -> fx.Node:
        self.graph.constants[name] = value
        return self._source(Source(SourceKind.CONSTANT, name), value.shape, value.dtype)

    def iteration(self) -> fx.Node:
        return self._source(Source(SourceKind.ITERATION), (), torch.int64)

    def _source(self, source: Source, shape: Any, dtype: torch.dtype) -> fx.Node:
        with self._mode or nullcontext():
            value = torch.empty(shape, dtype=dtype, device=self.device)
        return self.graph.add_source(source, value, self.record)

    def add(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Adds an operation, or the selection of one of several results."""
        given, named = map_arg((args, kwargs), lambda node: node.meta["val"])
        named = {**named, "device": self.device} if "device" in named else named
        with self._mode or nullcontext(), torch.no_grad():
            value = target(*given, **named)
        return self.graph.add_operation(target, args, kwargs, value, self.record)

    def end(self, *outputs: fx.Node, **others: Mapping[str, fx.Node]) -> Graph:
        """Ends the graph: outputs by number, then by name those of `gradient=`, `variable=`, ..."""
        results = [(Sink(SinkKind.OUTPUT, str(i)), node) for i, node in enumerate(outputs)]
        for kind, named in others.items():
            results += [(Sink(SinkKind(kind), name), node) for name, node in named.items()]
        self.graph.set_results(results)
        return self.graph


def computed(graph: Graph, given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the value of each sink by its text, from values of sources by theirs (`input 0`).

    PyTorch's interpreter of `torch.fx` runs the kernels for the CPU. The given tensors stay
    unchanged.
    """
    values = []
    for node in graph.sources:
        source = source_of(node)
        if source.kind is SourceKind.CONSTANT:
            values.append(graph.constants[source.name])
        elif source.kind is SourceKind.RNG:
            values.append(RNG)
        else:
            values.append(given[str(source)].clone())
    with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
        results = _OnCpu(fx.GraphModule({}, graph.fx)).run(*values)
    return {str(sink): result for sink, result in zip(graph.sinks, results, strict=True)}


class _OnCpu(fx.Interpreter):
    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        kwargs = {**kwargs, "device": "cpu"} if "device" in kwargs else kwargs
        return super().call_function(target, args, kwargs)


def targets(graph: Graph) -> list[str]:
    """Returns the operations of a graph in order, such as `aten.add.Tensor`."""
    return [str(node.target) for node in graph.operations]
