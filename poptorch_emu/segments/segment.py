"""Straight-line code of one stage, before it is lowered for the engine.

Each segment numbers its own registers. A link carries values to other segments. The classes here do
not depend on the engine.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import fx

from poptorch_emu.ir.control import region_names
from poptorch_emu.ir.graph import Graph, Sink, Source, SourceKind, record_of, source_of
from poptorch_emu.ir.operator_traits import traits_of
from poptorch_emu.ir.record import NodeRecord
from poptorch_emu.torch_versions import OpOverload


@dataclass(frozen=True)
class Register:
    """A numbered slot for one tensor."""

    index: int


@dataclass
class Instruction:
    """One operation: registers stand for tensors in `args` and `kwargs`, also within lists.

    Attributes:
        target: operator.
        args: positional arguments.
        kwargs: arguments by name.
        outputs: register of each result; -1 for a result without users.
        name: name of the node.
        record: record of the node.
        node: node of the graph.
        dies: registers that are read here for the last time.
        bodies: code of a loop, or of both sides of a branch.
    """

    target: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[int]
    name: str
    record: NodeRecord
    node: fx.Node
    dies: list[int] = field(default_factory=list)
    bodies: list[Body] = field(default_factory=list)

    @cached_property
    def reads(self) -> tuple[int, ...]:
        """Registers that the arguments name; cached, so the arguments must not change."""
        found: list[int] = []
        _add_registers((self.args, self.kwargs), found)
        return tuple(found)

    def reading(self, others: Mapping[int, int]) -> Instruction:
        """Returns a copy that reads `others[r]` in place of each register `r` in `others`."""
        args, kwargs = _with_others((self.args, self.kwargs), others)
        return replace(self, args=args, kwargs=kwargs)


@dataclass
class Body:
    """The code of a region, with registers of its own.

    Attributes:
        code: instructions of the region.
        parameters: register of each parameter; -1 for a parameter that is not read.
        iteration: register of the iteration number; -1 if it is not read.
        results: register of each result, in order.
    """

    code: Segment
    parameters: list[int]
    iteration: int
    results: list[int]


@dataclass
class Segment:
    """The code of one stage and one kind of action.

    Attributes:
        name: name of the segment, for example "forward 0".
        regions: graphs of loops and branches, by name.
        registers: register of each value of the graph that the segment has.
        loads: register of each source that the segment loads.
        instructions: instructions in the order of execution.
        inlined: registers of the values of each graph that `inline` added.
        num_registers: number of registers.
    """

    name: str
    regions: Mapping[str, Graph] = field(default_factory=dict)
    registers: dict[fx.Node, int] = field(default_factory=dict)
    loads: dict[Source, int] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)
    inlined: list[dict[fx.Node, int]] = field(default_factory=list)
    num_registers: int = 0

    @property
    def is_seen_outside(self) -> bool:
        """Whether running the code has an effect outside, for example printing or a host call."""
        return any(
            traits_of(instruction.target).is_seen_outside
            or any(body.code.is_seen_outside for body in instruction.bodies)
            for instruction in self.instructions
        )

    def new_register(self) -> int:
        """Returns a new register."""
        self.num_registers += 1
        return self.num_registers - 1

    def load(self, source: Source) -> int:
        """Returns the register of a source, loaded at the first use."""
        if source not in self.loads:
            self.loads[source] = self.new_register()
        return self.loads[source]

    def add(self, node: fx.Node) -> None:
        """Adds an operation whose inputs have registers here already."""
        args, kwargs = fx.node.map_arg(
            (node.args, node.kwargs),
            lambda value: Register(self.registers[value]),  # type: ignore[arg-type, return-value]
        )
        self.instructions.append(
            Instruction(
                node.target,  # type: ignore[arg-type]
                args,
                dict(kwargs),
                self._output_registers(node),
                node.name,
                record_of(node),
                node,
                bodies=[self._body(name) for name in region_names(node)],
            )
        )

    def inline(self, graph: Graph, bind: Callable[[Source], Source | Register]) -> dict[Sink, int]:
        """Adds all operations of `graph` and returns the register of each result.

        Args:
            graph: graph to add; it may be added many times.
            bind: function that replaces a source of `graph` by a source of this segment, or by a
                register that other code fills.
        """
        outer, self.registers = self.registers, {}
        for node in graph.fx.nodes:
            if node.op == "placeholder":
                bound = bind(source_of(node))
                self.registers[node] = (
                    bound.index if isinstance(bound, Register) else self.load(bound)
                )
            elif node.op == "call_function" and node.target is not operator.getitem:
                self.add(node)
        results = {sink: self.registers[node] for sink, node in graph.results}
        self.inlined.append(self.registers)
        self.registers = outer
        return results

    def rewritten(self, instructions: Iterable[Instruction], kept: set[int]) -> Segment:
        """Returns the segment with other instructions and only the loads that they need.

        Args:
            instructions: new instructions, which are copied.
            kept: registers that are read after the last instruction.
        """
        copies = [replace(each, outputs=list(each.outputs), dies=[]) for each in instructions]
        read = {register for each in copies for register in each.reads} | kept
        loads = {source: register for source, register in self.loads.items() if register in read}
        changed = replace(self, loads=loads, instructions=copies)
        changed.set_dying(kept)
        return changed

    def kept_registers(self) -> set[int]:
        """Returns the registers that are read after the last instruction."""
        dead = {register for instruction in self.instructions for register in instruction.dies}
        named = {
            register
            for instruction in self.instructions
            for register in (*instruction.outputs, *instruction.reads)
        }
        return {*named, *self.loads.values()} - dead - {-1}

    def set_dying(self, kept: set[int]) -> None:
        """Sets `dies` of each instruction, and marks results without readers.

        Args:
            kept: registers that are read after the last instruction.
        """
        alive = set(kept)
        for instruction in reversed(self.instructions):
            read = set(instruction.reads)
            instruction.outputs = [
                output if output in alive else -1 for output in instruction.outputs
            ]
            instruction.dies = sorted(read - alive)
            alive |= read

    def _body(self, name: str) -> Body:
        graph = self.regions[name]
        code = Segment(name, self.regions)
        registers = code.inline(graph, lambda source: source)
        results = [registers[sink] for sink in graph.sinks]
        code.set_dying(set(results))
        numbers = [int(s.name) for s in code.loads if s.kind is SourceKind.INPUT]
        parameters = [-1] * (max(numbers, default=-1) + 1)
        for source, register in code.loads.items():
            if source.kind is SourceKind.INPUT:
                parameters[int(source.name)] = register
        return Body(code, parameters, code.loads.get(Source(SourceKind.ITERATION), -1), results)

    def _output_registers(self, node: fx.Node) -> list[int]:
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            self.registers[node] = self.new_register()
            return [self.registers[node]]
        outputs = [-1] * len(value)
        for user in node.users:
            if user.target is operator.getitem:
                index: int = user.args[1]  # type: ignore[assignment]
                outputs[index] = self.registers[user] = self.new_register()
        return outputs


def _add_registers(value: Any, found: list[int]) -> None:
    if isinstance(value, Register):
        found.append(value.index)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _add_registers(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            _add_registers(item, found)


def _with_others(value: Any, others: Mapping[int, int]) -> Any:
    if isinstance(value, Register):
        return Register(others.get(value.index, value.index))
    if isinstance(value, (list, tuple)):
        return type(value)(_with_others(item, others) for item in value)
    if isinstance(value, dict):
        return {name: _with_others(item, others) for name, item in value.items()}
    return value
