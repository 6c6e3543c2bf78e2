"""Gives runs of operations in a segment to a compiler, and calls what it made of them.

A run is as long as possible: consecutive ATen operations that compute new tensors and draw no
random numbers. All others (loops, host calls, our own operators) stay as they are, between the
runs. Only the engine's code is changed: the machine's model knows the operations.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from poptorch_emu.engine.inductor import InductorCompiler
from poptorch_emu.engine.instruction import SAFE_TWINS
from poptorch_emu.engine.layout.fused_update import kept_registers
from poptorch_emu.segments.segment import Instruction, Register, Segment

_CALL = torch.ops.poptorch_emu.compiled_code.default
# Of these, a run must have at least one: views alone are not worth a call.
_FEWEST_OPERATIONS = 2
_CPU = torch.device("cpu")


def compile_runs(code: Segment, compiler: InductorCompiler) -> Segment:
    """Returns the code of a segment in which each run that can be compiled is one instruction."""
    kept = kept_registers(code)
    values = _values(code)
    last_read = {
        register: index
        for index, instruction in enumerate(code.instructions)
        for register in instruction.reads()
    }
    instructions: list[Instruction] = []
    for begin, end in _runs(code.instructions, values):
        members = code.instructions[begin:end]
        results = [
            register
            for member in members
            for register in member.outputs
            if register in kept or last_read.get(register, -1) >= end
        ]
        compiled = _compiled(members, results, values, compiler)
        instructions += members if compiled is None else [compiled]
    result = replace(code, instructions=[replace(each, dies=[]) for each in instructions])
    result.set_dying(kept)
    return result


def _values(code: Segment) -> dict[int, torch.Tensor]:
    """Returns the fake tensor of each register that has a node."""
    return {
        register: node.meta["val"]
        for node, register in code.registers.items()
        if isinstance(node.meta.get("val"), torch.Tensor)
    }


def _runs(
    instructions: Sequence[Instruction], values: Mapping[int, torch.Tensor]
) -> Iterator[tuple[int, int]]:
    """Yields where each run begins and ends; what cannot be compiled is a run of its own."""
    begin = 0
    for index, instruction in enumerate(instructions):
        if not _is_compilable(instruction, values):
            if begin < index:
                yield begin, index
            yield index, index + 1
            begin = index + 1
    if begin < len(instructions):
        yield begin, len(instructions)


def _is_compilable(instruction: Instruction, values: Mapping[int, torch.Tensor]) -> bool:
    target = instruction.target
    if target.namespace != "aten" or instruction.bodies or target._schema.is_mutable:
        return False
    if torch.Tag.nondeterministic_seeded in target.tags:
        return False
    registers = [*instruction.reads(), *(each for each in instruction.outputs if each >= 0)]
    return all(register in values for register in registers)


def _compiled(
    members: Sequence[Instruction],
    results: Sequence[int],
    values: Mapping[int, torch.Tensor],
    compiler: InductorCompiler,
) -> Instruction | None:
    """Returns the call of what the compiler made; `None` if it did not."""
    computing = [member for member in members if not member.target.is_view]
    if len(computing) < _FEWEST_OPERATIONS or not results:
        return None
    graph, inputs = _graph(members, results)
    if not inputs:
        return None
    library = compiler.library(graph, [_example(values[register]) for register in inputs])
    if library is None:
        return None
    arguments = ([Register(register) for register in inputs], str(library))
    return replace(members[-1], target=_CALL, args=arguments, kwargs={}, outputs=list(results))


def _graph(members: Sequence[Instruction], results: Sequence[int]) -> tuple[fx.Graph, list[int]]:
    """Returns the operations as a graph, and the registers that are its inputs."""
    made = {register for member in members for register in member.outputs}
    read = dict.fromkeys(register for member in members for register in member.reads())
    inputs = [register for register in read if register not in made]
    graph = fx.Graph()
    nodes = {register: graph.placeholder(f"input_{register}") for register in inputs}

    def bound(value: Any) -> Any:
        if isinstance(value, Register):
            return nodes[value.index]
        if isinstance(value, torch.device):
            return _CPU
        if isinstance(value, (list, tuple)):
            return [bound(item) for item in value]
        return value

    for member in members:
        kwargs = {key: bound(value) for key, value in member.kwargs.items()}
        target = SAFE_TWINS.get(member.target, member.target)
        node = graph.call_function(target, tuple(map(bound, member.args)), kwargs)
        if isinstance(member.node.meta["val"], torch.Tensor):
            nodes[member.outputs[0]] = node
            continue
        for index, register in enumerate(member.outputs):
            if register >= 0:
                nodes[register] = graph.call_function(operator.getitem, (node, index))
    graph.output(tuple(nodes[register] for register in results))
    return graph, inputs


def _example(value: torch.Tensor) -> torch.Tensor:
    return torch.zeros(value.shape, dtype=value.dtype, device=_CPU)
