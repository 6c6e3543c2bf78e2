"""Values of inputs that `forward` reads in a trace, with guards that check them before calls.

With `emulator.set_value_guards`, a read returns the value in the first micro-batch of the call. The
operations that compute the value are stored, and the host runs them on every micro-batch before
each call. Values that depend on random numbers are never read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from poptorch_emu.config import CompileConfig, SyntheticData
from poptorch_emu.errors import compiler_error
from poptorch_emu.ir.arguments import is_random
from poptorch_emu.ir.evaluate import evaluate
from poptorch_emu.ir.graph import Graph, Source, SourceKind, record_of, source_of
from poptorch_emu.ir.mutation import is_mutating, written_memory
from poptorch_emu.tensor_bytes import bytes_of
from poptorch_emu.torch_versions import OpOverload, disable_current_modes
from poptorch_emu.trace.places.source_line import user_source
from poptorch_emu.trace.values.decided_draws import decided
from poptorch_emu.trace.values.known_values import (
    is_known_to_hosts,
    known_value,
    reads_shape_only,
    sources_of_value,
)
from poptorch_emu.trace.values.narrowing import type_on_ipu

_WITHOUT_OPTION = (
    "Or set poptorch.emulator.set_value_guards(options): then forward is captured with the values "
    "of the first call, which are guarded"
)


@dataclass(frozen=True)
class ReadValue:
    """A value that `forward` read.

    Attributes:
        node: node that computes the value, in the recorded graph or in that of the guards.
        needed: operations and sources that affect the value.
        value: value in the first micro-batch of the recorded call.
        line: line of the user's code that reads the value.
    """

    node: fx.Node
    needed: frozenset[fx.Node]
    value: torch.Tensor
    line: str

    def names(self, kind: SourceKind) -> list[str]:
        """Returns the names of the sources of one kind that affect the value."""
        sources = [source_of(node) for node in self.needed if node.op == "placeholder"]
        return sorted(source.name for source in sources if source.kind is kind)


@dataclass(frozen=True)
class Mismatch:
    """A value that differs in another call.

    Attributes:
        read: the value when the program was captured.
        found: value in the other call.
        micro_batch: number of the micro-batch in that call, from 0.
    """

    read: ReadValue
    found: torch.Tensor
    micro_batch: int


@dataclass(frozen=True)
class ValueGuards:
    """Values that a call must have so that a program is valid; without any, it always is.

    Attributes:
        graph: graph that computes the values from inputs, constants and variables.
        reads: values, by the node after which each is compared.
        num_micro_batches: number of micro-batches of one call.
    """

    graph: Graph = field(default_factory=Graph)
    reads: Mapping[fx.Node, Sequence[ReadValue]] = field(default_factory=dict)
    num_micro_batches: int = 1

    def mismatch(
        self, inputs: Sequence[torch.Tensor], variable: Callable[[str], torch.Tensor]
    ) -> Mismatch | None:
        """Returns the first value that differs in a call, or None.

        Args:
            inputs: whole batches of the call.
            variable: returns the current value of a parameter or buffer from its name.
        """
        for number in range(self.num_micro_batches if self.reads else 0):

            def value_of(source: Source, number: int = number) -> torch.Tensor:
                if source.kind is SourceKind.CONSTANT:
                    return self.graph.constants[source.name]
                if source.kind is SourceKind.VARIABLE:
                    return variable(source.name)
                return micro_batch(inputs[int(source.name)], number, self.num_micro_batches)

            found = self._mismatch_in(value_of)
            if found is not None:
                return Mismatch(*found, number)
        return None

    def _mismatch_in(
        self, value_of: Callable[[Source], torch.Tensor]
    ) -> tuple[ReadValue, torch.Tensor] | None:
        values: dict[fx.Node, Any] = {}
        with torch.no_grad():
            for node in self.graph.fx.nodes:
                if node.op == "placeholder":  # The graph may change it in place.
                    values[node] = value_of(source_of(node)).detach().clone()
                else:
                    values[node] = evaluate(node, values)
                for read in self.reads.get(node, ()):
                    if not _are_same(values[read.node], read.value):
                        return read, values[read.node]
        return None


class ValueReads:
    """Reads values for one trace if the options allow it."""

    def __init__(self, config: CompileConfig, variables: Mapping[str, torch.Tensor]) -> None:
        """Starts without reads.

        Args:
            config: configuration of the compilation.
            variables: parameters and buffers of the host, by name.
        """
        self._config = config
        self._variables = variables
        self._inputs: dict[str, torch.Tensor] = {}
        self._reads: list[ReadValue] = []
        self._obstacle = ""

    def add_input(self, name: str, value: torch.Tensor) -> None:
        """Stores the whole batch of an input."""
        self._inputs[name] = value

    def read(self, graph: Graph, node: fx.Node) -> torch.Tensor | None:
        """Returns the value of a node in the first micro-batch, and adds a guard for it.

        Returns:
            None if values are not read, or if this one cannot be; `hint` then says why.
        """
        needed = frozenset(sources_of_value(graph, node))
        self._obstacle = next(filter(None, map(self._obstacle_in, needed)), "")
        if self._obstacle or not self._config.max_guarded_programs:
            return None
        with disable_current_modes():
            value = known_value(graph, node, self._value_of)
            assert value is not None, "nothing is in the way of it"
            # The guard stores a copy, because the user's code may change the returned tensor.
            self._reads.append(ReadValue(node, needed, value.clone(), user_source()))
        return value

    def hint(self) -> str:
        """Returns the reason why a value was not read, for the end of an error message."""
        if self._obstacle:
            return f"emulator.set_value_guards cannot guard this value: {self._obstacle}"
        return _WITHOUT_OPTION

    def guards(self, graph: Graph) -> ValueGuards:
        """Returns guards for all values that were read.

        Raises:
            Error: a value depends on a variable that forward changes between micro-batches.
        """
        if not self._reads:
            return ValueGuards()
        self._check_steady(graph)
        needed = frozenset[fx.Node]().union(*(read.needed for read in self._reads))
        own = Graph()
        copies: dict[fx.Node, fx.Node] = {}
        last_of: dict[int, fx.Node] = {}
        with disable_current_modes():
            for node in graph.fx.nodes:
                if node not in needed:
                    continue
                copies[node] = self._copied(graph, node, own, copies)
                for index, read in enumerate(self._reads):
                    if node in read.needed:
                        last_of[index] = copies[node]
        reads: dict[fx.Node, list[ReadValue]] = {}
        for index, read in enumerate(self._reads):
            kept = frozenset(copies[node] for node in read.needed)
            moved = ReadValue(copies[read.node], kept, read.value, read.line)
            reads.setdefault(last_of[index], []).append(moved)
        return ValueGuards(own, reads, self._config.batch_factor)

    def _copied(
        self, graph: Graph, node: fx.Node, own: Graph, copies: dict[fx.Node, fx.Node]
    ) -> fx.Node:
        """Copies a node into the guards' graph. Used only for its shape, it becomes a constant."""
        if node.op == "placeholder":
            source = source_of(node)
            if source.kind is SourceKind.CONSTANT:
                own.constants[source.name] = graph.constants[source.name].clone()
            return own.add_source(source, node.meta["val"], record_of(node))
        if (truth := decided(node)) is not None:
            own.constants[node.name] = torch.full(node.meta["val"].shape, truth)
            source = Source(SourceKind.CONSTANT, node.name)
            return own.add_source(source, node.meta["val"], record_of(node))
        if reads_shape_only(node) and node.all_input_nodes[0] not in copies:
            like = node.all_input_nodes[0]
            form, name = like.meta["val"], f"shape of {like.name}"
            own.constants[name] = torch.empty(form.shape, dtype=form.dtype)
            source = Source(SourceKind.CONSTANT, name)
            copies[like] = own.add_source(source, form, record_of(like))
        copy = own.fx.node_copy(node, copies.__getitem__)
        copy.meta = {"record": record_of(node)}
        return copy

    def _value_of(self, node: fx.Node) -> torch.Tensor | None:
        source = source_of(node)
        if source.kind is SourceKind.VARIABLE:
            return self._variables[source.name].detach()
        return micro_batch(self._inputs[source.name], 0, self._config.batch_factor)

    def _obstacle_in(self, node: fx.Node) -> str:
        """Returns the reason why values that depend on `node` cannot be guarded, or ""."""
        if node.op == "placeholder":
            return self._obstacle_of_source(source_of(node))
        if isinstance(node.target, OpOverload):
            line = record_of(node).source
            if is_random(node):
                return (
                    f"it depends on a random draw ({node.target} at {line}), which the next "
                    "micro-batch draws otherwise. Choose on the device with torch.where or "
                    "poptorch.cond"
                )
            if not is_known_to_hosts(node):
                return f"it depends on {node.target} at {line}, which only a run can compute"
        return ""

    def _obstacle_of_source(self, source: Source) -> str:
        config = self._config
        if source.kind is SourceKind.INPUT:
            if config.synthetic_data is not SyntheticData.OFF:
                return "it depends on an input, and the options ask for synthetic data"
            if self._inputs[source.name].device.type == "meta":
                return "it depends on an input on the meta device, which has no values"
            if config.num_processes > 1:
                return "it depends on an input, of which each of several processes has its own"
        if source.kind is SourceKind.VARIABLE:
            name = source.name
            if any(groups.name == name for groups in config.weight_groups):
                return f"it depends on {name}, of which groups of replicas have their own"
            if self._variables[name].is_meta:
                return f"it depends on {name}, which has no values"
            if self._is_trained(name) and config.device_iterations > 1:
                return (
                    f"it depends on the weight {name}, which each device iteration changes. Train "
                    "with deviceIterations(1)"
                )
        if source.kind not in (SourceKind.INPUT, SourceKind.VARIABLE, SourceKind.CONSTANT):
            return "it depends on a number that the optimizer gives the device"
        return ""

    def _is_trained(self, name: str) -> bool:
        return self._config.is_training and self._variables[name].requires_grad

    def _check_steady(self, graph: Graph) -> None:
        """Raises for values that depend on buffers which change between micro-batches."""
        if self._config.device_iterations * self._config.gradient_accumulation == 1:
            return
        written = set[fx.Node]().union(*map(written_memory, filter(is_mutating, graph.operations)))
        for read in self._reads:
            for node in read.needed & written:
                if node.op == "placeholder" and source_of(node).kind is SourceKind.VARIABLE:
                    raise compiler_error(
                        f"The value that is read at {read.line} depends on the buffer "
                        f"{source_of(node).name}, which forward changes in each micro-batch: it "
                        "cannot be guarded before a call. Call the model with one micro-batch "
                        "(deviceIterations(1), gradientAccumulation(1))."
                    )


_active: ValueReads | None = None


@contextmanager
def reading(reads: ValueReads) -> Iterator[None]:
    """Makes `hint` refer to these reads."""
    global _active
    _active = reads
    try:
        yield
    finally:
        _active = None


def hint() -> str:
    """Returns the end of a read's error: the effect of the option, or why it has none."""
    return _WITHOUT_OPTION if _active is None else _active.hint()


def micro_batch(value: torch.Tensor, number: int, count: int) -> torch.Tensor:
    """Returns the rows of one micro-batch, in the data type of the device.

    Args:
        value: the whole batch.
        number: number of the micro-batch, from 0.
        count: number of micro-batches in one call.
    """
    rows = value.detach()
    if rows.dim() > 0:
        length = rows.size(0) // count
        rows = rows.narrow(0, number * length, length)
    return rows.to(type_on_ipu(rows.dtype, "An input"))


def _are_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether two tensors have the same bits."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(bytes_of(one), bytes_of(other))
