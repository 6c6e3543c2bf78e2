"""A graph of tensor operations: `torch.fx.Graph` with typed sources and sinks.

A *source* is a placeholder, whose value comes from outside each time the graph runs (an input, a
variable of the model, a constant, ...). A *sink* is the destination of a result. The fake tensor of
a value is in `node.meta["val"]`, its origin in `node.meta["record"]`. Graphs do not know devices or
schedules.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any

import torch
from torch import fx
from torch.fx import Node
from torch.fx.node import map_arg

from poptorch_emu.ir.record import NodeRecord

Operation = Callable[..., Any]

_set_arguments: Callable[[Node, Any], None] = Node.args.fset  # type: ignore[attr-defined]


class SourceKind(Enum):
    """The kind of a source."""

    INPUT = "input"
    VARIABLE = "variable"
    CONSTANT = "constant"
    SCALAR = "scalar"
    GRADIENT = "gradient"
    RNG = "rng"
    LINK = "link"
    ITERATION = "iteration"

    # Python's default for enums hashes the name, which costs a call each time.
    __hash__ = object.__hash__


@dataclass(frozen=True)
class Source:
    """The origin of a placeholder.

    Attributes:
        kind: kind of the source.
        name: number of an input as text, or name of a variable.
    """

    kind: SourceKind
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value} {self.name}".rstrip()


class SinkKind(Enum):
    """The kind of a sink."""

    OUTPUT = "output"
    GRADIENT = "gradient"
    VARIABLE = "variable"
    INPUT = "input"
    LINK = "link"
    ANCHOR = "anchor"

    __hash__ = object.__hash__


@dataclass(frozen=True)
class Sink:
    """The destination of a result.

    `INPUT` writes back into the caller's tensor. `ANCHOR` keeps the value for the host under the
    user's name. `LINK`, here and among the sources, is another segment of the same program.

    Attributes:
        kind: kind of the sink.
        name: name of the variable, input, output or anchor.
        piece: first micro-batch of the result, counted within the joined micro-batches.
        num_pieces: number of micro-batches in the result, which lie one after the other.
    """

    kind: SinkKind
    name: str = ""
    piece: int = 0
    num_pieces: int = 1

    def __str__(self) -> str:
        return f"{self.kind.value} {self.name}".rstrip()


@dataclass(frozen=True)
class Average:
    """A moving average of a weight: factor * average + (1 - factor) * weight, at each update.

    Attributes:
        weight: name of the averaged variable.
        average: name of the variable that holds the average.
        factor: source of the factor.
    """

    weight: str
    average: str
    factor: Source


@dataclass
class Graph:
    """Operations in the order they were recorded, with typed ends.

    Attributes:
        fx: operations; its output node holds one result for each sink.
        sinks: destination of each result, in the order of the output node.
        constants: tensors of the sources of kind CONSTANT, by name.
        regions: bodies of loops and branches by name. The outermost graph holds all of them, nested
            ones included.
        repeats: name of the region that this region computes again; empty for other graphs.
        averages: moving averages that the update computes.
    """

    fx: fx.Graph = field(default_factory=fx.Graph)
    sinks: tuple[Sink, ...] = ()
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    regions: dict[str, Graph] = field(default_factory=dict)
    repeats: str = ""
    averages: tuple[Average, ...] = ()

    def add_source(self, source: Source, value: torch.Tensor, record: NodeRecord) -> Node:
        """Adds a placeholder in front of all operations and returns it."""
        name = f"{source.kind.value}_{source.name}".rstrip("_").replace(".", "_")
        with self._after_sources():
            node = self.fx.placeholder(name)
        # A later operation in place may change the shape of `value`, but not that of the source.
        layout = tuple(value.size()), value.stride()
        node.meta.update(val=value, record=record, source=source, layout=layout)
        return node

    def _after_sources(self) -> AbstractContextManager[None]:
        """Sets the insertion point behind the last placeholder."""
        sources = self.fx.find_nodes(op="placeholder", sort=False)
        if sources:
            return self.fx.inserting_after(sources[-1])
        first = next(iter(self.fx.nodes), None)
        return self.fx.inserting_before(first) if first is not None else nullcontext()

    def add_operation(
        self, target: Operation, args: Any, kwargs: Any, value: Any, record: NodeRecord
    ) -> Node:
        """Adds an operation at the end (or where `fx.inserting_before` says) and returns it.

        `args` are set afterwards and by the property's setter function. `call_function` would
        search them for symbolic sizes, and assigning the attribute would make the graph check the
        target. Both take longer than all the rest.
        """
        node = self.fx.call_function(target, kwargs=kwargs, name=_name_of(target))
        _set_arguments(node, args)
        node.meta.update(val=value, record=record)
        return node

    def set_results(self, results: Iterable[tuple[Sink, Node]]) -> None:
        """Ends the graph with these results, replacing former ones."""
        pairs = list(results)
        for node in self.fx.find_nodes(op="output"):
            self.fx.erase_node(node)
        self.fx.output(tuple(node for _, node in pairs))
        self.sinks = tuple(sink for sink, _ in pairs)

    @property
    def sources(self) -> Sequence[Node]:
        """The placeholders."""
        return list(self.fx.find_nodes(op="placeholder"))

    @property
    def operations(self) -> Sequence[Node]:
        """All operations in order, without the selections (`getitem`) of their results."""
        return [
            node
            for node in self.fx.nodes
            if node.op == "call_function" and node.target is not operator.getitem
        ]

    @property
    def results(self) -> Sequence[tuple[Sink, Node]]:
        """Each sink with the node whose value goes there."""
        (output,) = self.fx.find_nodes(op="output")
        return list(zip(self.sinks, output.args[0], strict=True))


@cache
def _name_of(target: Operation) -> str:
    """Returns the name of an operation's nodes, before they are numbered."""
    return target.__name__.lower().replace(".", "_")


def record_of(node: Node) -> NodeRecord:
    """Returns the origin of `node`."""
    record: NodeRecord = node.meta["record"]
    return record


def operation_of(value: Node) -> Node:
    """Returns the operation that computes `value`, which may be one of its several results."""
    producer = value.args[0] if value.target is operator.getitem else value
    assert isinstance(producer, Node), "a selection has the operation as its first argument"
    return producer


def results_of(operation: Node) -> Iterator[Node]:
    """Yields an operation and the nodes that select its results, if it has several."""
    yield operation
    yield from (user for user in operation.users if user.target is operator.getitem)


def tensors_of(nodes: Iterable[Node]) -> Iterator[torch.Tensor]:
    """Yields the fake tensors of the values of `nodes`."""
    for node in nodes:
        value = node.meta["val"]
        values = value if isinstance(value, (list, tuple)) else [value]
        yield from (item for item in values if isinstance(item, torch.Tensor))


def source_of(node: Node) -> Source:
    """Returns the source of a placeholder."""
    source: Source = node.meta["source"]
    return source


def replay(
    graph: Graph, values: Sequence[Any], before: Callable[[Node], None] = lambda node: None
) -> list[Any]:
    """Runs the operations and returns one result for each sink.

    Args:
        graph: graph to run.
        values: tensors for `graph.sources`, in order.
        before: function that is called before each operation.
    """
    env: dict[Node, Any] = dict(zip(graph.sources, values, strict=True))
    for node in graph.fx.nodes:
        if node.op == "call_function":
            before(node)
            args, kwargs = map_arg((node.args, node.kwargs), env.__getitem__)
            env[node] = node.target(*args, **kwargs)
    return [env[node] for _, node in graph.results]
