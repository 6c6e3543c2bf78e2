"""Fuses the elementwise operations that update a weight into one instruction.

Separate operations would read and write whole tensors about ten times. The fused instruction reads
and writes each tensor once, with the same bits (`csrc/numerics/elementwise_pass.cpp`). Only the
engine's code changes; the machine's model keeps the operations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch
from torch import fx

from poptorch_emu.ir.arguments import arguments_of
from poptorch_emu.ir.graph import Source, SourceKind
from poptorch_emu.ir.operator_traits import traits_of
from poptorch_emu.passes.widening import is_half
from poptorch_emu.segments.segment import Instruction, Register, Segment
from poptorch_emu.update.parts.update_parts import Part
from poptorch_emu.update.parts.update_plan import UpdatePlan
from poptorch_emu.update.recorded import TEMPLATE_SHAPE

aten = torch.ops.aten


# Each operator's number in the fused code, with its operands in the order of the code. The numbers
# are those of `Operation` in csrc/numerics/elementwise_pass.cpp.
_COPY, _NEG, _SQRT, _MUL, _DIV, _ADD, _ADDCMUL, _ADDCDIV, _LERP, _ROUND = range(10)
_OPERATIONS: Mapping[object, tuple[int, tuple[str, ...]]] = {
    aten._to_copy.default: (_COPY, ("self",)),
    aten.neg.default: (_NEG, ("self",)),
    aten.sqrt.default: (_SQRT, ("self",)),
    aten.mul.Tensor: (_MUL, ("self", "other")),
    aten.div.Tensor: (_DIV, ("self", "other")),
    aten.add.Tensor: (_ADD, ("self", "other", "alpha")),
    aten.addcmul.default: (_ADDCMUL, ("self", "tensor1", "tensor2", "value")),
    aten.addcdiv.default: (_ADDCDIV, ("self", "tensor1", "tensor2", "value")),
    aten.lerp.Scalar: (_LERP, ("self", "end", "weight")),
    aten.lerp.Tensor: (_LERP, ("self", "end", "weight")),
}
_NUM_OPERANDS = 4
_ROW = 2 + _NUM_OPERANDS
_ELEMENTWISE = torch.ops.poptorch_emu.elementwise.default
_ELEMENTWISE_ROWS = torch.ops.poptorch_emu.elementwise_rows.default


def fuse(code: Segment, places: Mapping[int, int] | None = None) -> Segment:
    """Returns the code of an update with the elementwise operations of each weight fused.

    A weight's operations stay separate if one of them is unknown, or if a scalar depends on them.

    Args:
        code: code of an update.
        places: register that each result overwrites, by the result's register, unless it is new.
    """
    kept = code.kept_registers()
    single = _without_repetitions(_instructions(code, kept, places or {}), kept)
    result = replace(code, instructions=[replace(each, dies=[]) for each in single])
    result.set_dying(kept)
    return result


def _instructions(code: Segment, kept: set[int], places: Mapping[int, int]) -> list[Instruction]:
    """Returns the instructions of an update, grouped by weight and fused if possible."""
    groups = {}
    for group, registers in enumerate(code.inlined):
        for node, register in registers.items():
            if node.op == "call_function":
                groups[register] = group
    of_group: dict[int, list[Instruction]] = {}
    for instruction in code.instructions:
        of_group.setdefault(groups.get(instruction.outputs[0], -1), []).append(instruction)
    instructions: list[Instruction] = []
    for group, members in of_group.items():
        fused = None if group < 0 else _fused(members, code.inlined[group], kept, places)
        instructions += members if fused is None else fused
    return instructions


def _is_fused(code: Segment, places: Mapping[int, int]) -> bool:
    """Returns whether only fused instructions compute on whole tensors, so that none can fail."""
    return all(
        instruction.target is _ELEMENTWISE or not _is_wide(instruction.node)
        for instruction in _instructions(code, code.kept_registers(), places)
    )


def fused_code(part: Part, *, in_place: bool) -> Segment:
    """Returns the fused code of a part of an update.

    Args:
        part: part of an update.
        in_place: whether weights and states are overwritten in place; a part by rows then receives
            whole weights and overwrites single rows of them.
    """
    if not in_place:
        return fuse(part.code)
    code = fuse(part.code, _places(part))
    return _on_rows(code, part) if part.is_by_rows else _merged(code)


def _places(part: Part) -> dict[int, int]:
    """Returns the old value's register for each register that an update stores."""
    loads = {s.name: r for s, r in part.code.loads.items() if s.kind is SourceKind.VARIABLE}
    return {r: loads[name] for r, name in part.stores.items() if name in loads}


def _merged(code: Segment) -> Segment:
    """Returns code with one instruction for adjacent in-place updates with the same rule.

    An instruction has an overhead of one or two microseconds in addition to its computation.
    """
    instructions: list[Instruction] = []
    for rule, members in groupby(code.instructions, _rule_in_place):
        alike = list(members)
        instructions += alike if rule is None else [_merged_instruction(alike)]
    return code.rewritten(instructions, code.kept_registers())


def _rule_in_place(instruction: Instruction) -> str | None:
    """Returns the rule of a fused in-place update as text; `None` if it creates new tensors."""
    if instruction.target is not _ELEMENTWISE or min(instruction.args[-1]) < 0:
        return None
    tensors, *rule = instruction.args
    return repr((len(tensors), rule))


def _merged_instruction(alike: Sequence[Instruction]) -> Instruction:
    tensors = [tensor for each in alike for tensor in each.args[0]]
    outputs = [register for each in alike for register in each.outputs]
    return replace(alike[-1], args=(tensors, *alike[-1].args[1:], len(alike)), outputs=outputs)


def _on_rows(code: Segment, part: Part) -> Segment:
    """Returns fused code that overwrites only rows whose sums received something.

    The engine computes the sums of these rows during the update, so that no register holds them.
    """

    def of_rows(instruction: Instruction) -> Instruction:
        if instruction.target is not _ELEMENTWISE:
            return instruction
        (name,) = {part.stores[result] for result in instruction.outputs}
        gradient = code.loads[Source(SourceKind.GRADIENT, name)]
        args = (*_without_tensor(instruction.args, gradient), name)
        return replace(instruction, target=_ELEMENTWISE_ROWS, args=args)

    return code.rewritten(map(of_rows, code.instructions), code.kept_registers())


def _without_tensor(args: tuple[Any, ...], register: int) -> tuple[Any, ...]:
    """Returns fused arguments without one tensor; its number becomes the last one."""
    tensors, scalars, code, constants, results, overwritten = args
    place = tensors.index(Register(register))
    others = [*tensors[:place], *tensors[place + 1 :]]
    number = {old: old - (old > place) for old in range(len(tensors))} | {place: len(others)}

    def renumbered(row: list[int]) -> list[int]:
        return [row[0], *(number.get(value, value) for value in row[1:])]

    rows = [renumbered(code[i : i + _ROW]) for i in range(0, len(code), _ROW)]
    places = [number[old] for old in overwritten]
    return others, scalars, [value for row in rows for value in row], constants, results, places


def can_update_in_place(plan: UpdatePlan) -> bool:
    """Returns whether no update can fail, so that none has to be undone.

    Sharded updates create new tensors, which take effect for all replicas at once. With several
    exchanges over the network, an exchange can fail after another one's update.
    """
    if len(plan.network) > 1:
        return False
    parts = [part for parts in plan.parts for part in parts if part.stores]
    return not any(part.is_sharded for part in parts) and all(
        _is_fused(part.code, {} if part.is_by_rows else _places(part)) for part in parts
    )


def _fused(
    members: Sequence[Instruction],
    registers: Mapping[fx.Node, int],
    kept: set[int],
    places: Mapping[int, int],
) -> list[Instruction] | None:
    """Returns the scalar operations and one fused instruction; `None` if fusion is impossible."""
    wide = [member for member in members if _is_wide(member.node)]
    scalars = [member for member in members if not _is_wide(member.node)]
    made = {register for member in wide for register in member.outputs}
    if len(wide) < 2 or any(made.intersection(member.reads) for member in scalars):
        return None
    writer = _Writer(registers)
    if not all(writer.add(member.node) for member in wide):
        return None
    results = [member.outputs[0] for member in wide if member.outputs[0] in kept]
    fused = writer.instruction(wide[-1], results, places)
    return None if fused is None else [*scalars, fused]


def _without_repetitions(
    instructions: Sequence[Instruction], kept: set[int]
) -> Iterator[Instruction]:
    """Yields instructions without repeated operations on scalars.

    The update of each weight computes the same numbers from the same hyper-parameters.
    """
    first_of: dict[str, int] = {}
    renamed: dict[int, int] = {}
    for instruction in instructions:
        same = instruction.reading(renamed)
        if _is_pure(instruction) and not kept.intersection(instruction.outputs):
            (result,) = instruction.outputs
            first = first_of.setdefault(repr((same.target, same.args, same.kwargs)), result)
            if first != result:
                renamed[result] = first
                continue
        yield same


def _is_pure(instruction: Instruction) -> bool:
    """Returns whether an operation on scalars returns the same result at any time."""
    is_pure = traits_of(instruction.target).is_pure
    return is_pure and len(instruction.outputs) == 1 and not _is_wide(instruction.node)


def _is_wide(node: fx.Node) -> bool:
    return getattr(node.meta["val"], "shape", None) == TEMPLATE_SHAPE


def _is_single(node: fx.Node) -> bool:
    return bool(node.meta["val"].dtype == torch.float32)


def _is_cast(node: fx.Node) -> bool:
    return node.target is aten._to_copy.default


class _Writer:
    """Writes the code of a fused instruction.

    Tensors are numbered from 0, and results follow the tensors. The numbers of results are known
    only after all tensors have been added, so that rows are completed at the end.
    """

    def __init__(self, registers: Mapping[fx.Node, int]) -> None:
        self._registers = registers
        self._tensors: list[fx.Node] = []
        self._scalars: list[fx.Node] = []
        self._constants: list[float] = []
        self._rows: list[tuple[int, fx.Node, list[Any]]] = []

    def add(self, node: fx.Node) -> bool:
        """Adds an operation; returns whether the fused code supports it."""
        operation, names = _OPERATIONS.get(node.target, (0, ()))
        if not names or not self._is_known(node):
            return False
        call = arguments_of(node)
        operands = [getattr(call, name) for name in names]
        if not all(
            _is_single(value) or (_is_cast(node) and self._is_known(value))
            for value in operands
            if isinstance(value, fx.Node)
        ):
            return False
        made = {row[1] for row in self._rows}
        for value in operands:
            if not isinstance(value, fx.Node):
                known: list[Any] = self._constants
            else:
                known = self._tensors if _is_wide(value) else self._scalars
            if value not in made and value not in known:
                known.append(value)
        self._rows.append((_ROUND if is_half(node) else operation, node, operands))
        return True

    @staticmethod
    def _is_known(node: fx.Node) -> bool:
        """Returns whether a value is float32, or a float16 tensor that is loaded or cast."""
        is_narrow = is_half(node) and _is_wide(node)
        return _is_single(node) or (is_narrow and (node.op == "placeholder" or _is_cast(node)))

    def instruction(
        self, last: Instruction, results: Sequence[int], places: Mapping[int, int]
    ) -> Instruction | None:
        """Returns the fused instruction that computes the values of the registers `results`.

        Returns `None` if one of them would be a new float16 tensor.
        """
        nodes = [*self._tensors, *(node for _, node, _ in self._rows)]
        number = {node: index for index, node in enumerate(nodes)}
        code = []
        for operation, node, operands in self._rows:
            row = [operation, number[node], *(self._operand(value, number) for value in operands)]
            code += row + [0] * (_ROW - len(row))
        of_register = {self._registers[node]: number[node] for _, node, _ in self._rows}
        tensors = [self._registers[node] for node in self._tensors]
        overwritten = [
            tensors.index(places[result]) if places.get(result) in tensors else -1
            for result in results
        ]
        node_of = {self._registers[node]: node for node in nodes}
        for result, place in zip(results, overwritten, strict=True):
            if is_half(node_of[result]) != (place >= 0 and is_half(self._tensors[place])):
                return None
        arguments = (
            [Register(register) for register in tensors],
            [Register(self._registers[node]) for node in self._scalars],
            code,
            list(self._constants),
            [of_register[register] for register in results],
            overwritten,
        )
        return replace(last, target=_ELEMENTWISE, args=arguments, kwargs={}, outputs=list(results))

    def _operand(self, value: Any, number: Mapping[fx.Node, int]) -> int:
        if not isinstance(value, fx.Node):
            return -1 - self._constants.index(value)
        if value in number:
            return number[value]
        return -1 - len(self._constants) - self._scalars.index(value)
