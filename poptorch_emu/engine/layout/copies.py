"""Removes zeros and copies from the engine's code that change no bit.

If a tensor was read in parts, its gradient is a sum of tensors that are each zero except for one
part. If the parts cover the whole tensor, they are concatenated instead, with the bits of the sum
(`csrc/ops/joined_gradients.cpp`). A copy is removed if only another copy reads it, through views
and transposes, or if the value is already contiguous. All changes stay within a segment. They
change no bit, so that no bit depends on the end of a stage. The machine's model keeps the
operations, because only the engine's code changes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from poptorch_emu.engine.layout.arrangement import PERMUTATIONS, Arrangement, order_of, sizes
from poptorch_emu.segments.segment import Instruction, Register, Segment
from poptorch_emu.segments.segmented_graph import SegmentedGraph
from poptorch_emu.torch_versions import OpOverload

aten = torch.ops.aten

_JOIN = torch.ops.poptorch_emu.joined_gradients.default
_SELECTED, _SLICED = aten.select_backward.default, aten.slice_backward.default
_COPIES = {aten.clone.default, aten.contiguous.default}
_VIEWS = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
}
# Operators that may lose all readers after a change; an instruction without readers is removed.
_MOVES = {*_COPIES, *_VIEWS, *PERMUTATIONS, aten.add.Tensor, _SELECTED, _SLICED, _JOIN}


def leave_out_copies(cut: SegmentedGraph) -> SegmentedGraph:
    """Returns the segments without the zeros and copies that are not needed."""
    segments = {port: _changed(segment) for port, segment in cut.segments.items()}
    return replace(cut, segments=segments)


def _changed(code: Segment) -> Segment:
    """Returns the changed code of a segment, or the same object if nothing changes."""
    kept = code.kept_registers()
    editor = _Editor(replace(code, registers=dict(code.registers)), kept)
    editor.run(editor.joined)
    editor.run(editor.joined_in_order)
    editor.run(editor.joined_from_origins)
    editor.run(editor.copied_at_once)
    editor.run(editor.copied_if_out_of_order)
    return editor.finished() if editor.is_changed else code


@dataclass(frozen=True)
class _Part:
    """The indices of a dimension that a gradient covers; its sum is zero elsewhere."""

    register: int
    begin: int
    end: int


@dataclass(frozen=True)
class _Sum:
    """A sum of tensors of one shape that are zero except for a part of dimension `dim`."""

    shape: tuple[int, ...]
    dim: int
    parts: tuple[_Part, ...]
    dtype: torch.dtype


class _Editor:
    """Rewrites the code of a segment, in one pass for each kind of change."""

    def __init__(self, code: Segment, kept: set[int]) -> None:
        self.is_changed = False
        self._code = code
        self._kept = kept
        self._shapes: dict[int, tuple[int, ...]] = {
            register: tuple(node.meta["val"].shape)
            for node, register in code.registers.items()
            if isinstance(node.meta.get("val"), torch.Tensor)
        }
        self._instructions = list(code.instructions)
        self._makers: dict[int, Instruction] = {}
        self._readers: Counter[int] = Counter()
        self._written: list[Instruction] = []

    def run(self, change: Callable[[Instruction], bool]) -> None:
        """Calls `change` for each instruction; it writes a replacement or returns False."""
        self._makers = {each.outputs[0]: each for each in self._instructions if each.outputs}
        self._readers = Counter(r for each in self._instructions for r in each.reads)
        self._written = []
        for instruction in self._instructions:
            if change(instruction):
                self.is_changed = True
            else:
                self._written.append(instruction)
        self._instructions = self._needed()

    def finished(self) -> Segment:
        """Returns the changed code."""
        instructions = [
            replace(each, outputs=list(each.outputs), dies=[]) for each in self._instructions
        ]
        code = replace(self._code, instructions=instructions)
        code.set_dying(self._kept)
        return code

    def _needed(self) -> list[Instruction]:
        """Returns the written instructions, except moves whose results nobody reads."""
        alive = set(self._kept)
        needed: list[Instruction] = []
        for instruction in reversed(self._written):
            if instruction.target not in _MOVES or not alive.isdisjoint(instruction.outputs):
                needed.append(instruction)
                alive |= set(instruction.reads)
        return needed[::-1]

    # Functions that remove sums of zero-padded parts.

    def joined(self, instruction: Instruction) -> bool:
        """Concatenates the parts that a sum adds, if they cover the whole tensor."""
        found = self._sum_of(instruction)
        if found is None:
            return False
        parts = sorted(found.parts, key=lambda part: part.begin)
        ends = [0, *(part.end for part in parts)]
        if [part.begin for part in parts] != ends[:-1] or ends[-1] != found.shape[found.dim]:
            return False
        registers = []
        for part in parts:
            shape = list(found.shape)
            shape[found.dim] = part.end - part.begin
            registers.append(self._viewed(part.register, shape, instruction))
        self._write_join(registers, found.dim, instruction.outputs[0], instruction)
        return True

    def _sum_of(self, instruction: Instruction) -> _Sum | None:
        """Returns the parts that a sum adds, if nothing else reads them; otherwise `None`."""
        pending = [instruction]
        parts: list[_Part] = []
        found: _Sum | None = None
        while pending:
            adding = pending.pop()
            if adding.target is not aten.add.Tensor or adding.kwargs:
                return None
            for value in adding.args:
                maker = self._makers.get(value.index) if isinstance(value, Register) else None
                if maker is None or not self._is_only_read_once(maker.outputs[0]):
                    return None
                one = _part_of(maker)
                if one is None:
                    pending.append(maker)
                    continue
                if found is not None and replace(one, parts=()) != replace(found, parts=()):
                    return None
                found = one
                parts += one.parts
        if found is None or self._shapes.get(instruction.outputs[0]) != found.shape:
            return None
        return replace(found, parts=tuple(parts))

    def _is_only_read_once(self, register: int) -> bool:
        return self._readers[register] == 1 and register not in self._kept

    # Functions that remove copies of copies.

    def joined_in_order(self, instruction: Instruction) -> bool:
        """Concatenates a gradient directly in the order of the copy that follows."""
        if not _is_contiguous_copy(instruction):
            return False
        origin = self._origin(instruction.args[0].index, is_join=True)
        if origin is None:
            return False
        join, arrangement = self._makers[origin[0]], origin[1]
        parts, dim = join.args
        whole = [stretch for stretch in arrangement.stretches if stretch.dim == dim]
        if len(whole) != 1 or not arrangement.keeps_rows or arrangement.split[-1] == whole[0]:
            return False
        place = arrangement.stretches.index(whole[0])
        registers = []
        for part in parts:
            size = self._shapes[part.index][dim]
            shape = sizes(arrangement.stretches)
            shape[place] = size
            ordered = arrangement.resized(dim, size)
            registers.append(self._arranged(part.index, ordered, shape, instruction))
        result = self._before(instruction.outputs[0], sizes(arrangement.stretches))
        self._write_join(registers, place, result, instruction)
        self._write_view(result, instruction.outputs[0], instruction)
        return True

    def copied_at_once(self, instruction: Instruction) -> bool:
        """Copies directly from the source of an earlier copy."""
        if not _is_contiguous_copy(instruction):
            return False
        origin = self._origin(instruction.args[0].index)
        if origin is None:
            return False
        register, arrangement = origin
        shape = sizes(arrangement.stretches)
        source = self._arranged(register, arrangement, shape, instruction)
        copy = self._before(instruction.outputs[0], shape)
        self._write(replace(instruction, args=(Register(source),), outputs=[copy]))
        self._write_view(copy, instruction.outputs[0], instruction)
        return True

    def copied_if_out_of_order(self, instruction: Instruction) -> bool:
        """Copies a value that was computed in this segment only if it is not contiguous.

        Without the copy, two names may share memory, which is safe because nothing writes in
        place. A value from outside the segment is always copied: others keep its memory longer.
        """
        if not _is_contiguous_copy(instruction):
            return False
        register = instruction.args[0].index
        while (maker := self._makers.get(register)) is not None:
            if maker.target not in _VIEWS and maker.target not in PERMUTATIONS:
                self._write(replace(instruction, target=aten.contiguous.default, kwargs={}))
                return True
            register = maker.args[0].index
        return False

    def joined_from_origins(self, join: Instruction) -> bool:
        """Concatenates directly from the sources of earlier copies."""
        if join.target is not _JOIN:
            return False
        registers, dim = [part.index for part in join.args[0]], join.args[1]
        origins = [self._origin(register) for register in registers]
        is_found = [origin is not None and origin[1].keeps_rows for origin in origins]
        if not any(is_found):
            return False
        pairs: list[tuple[int, Arrangement]] = [
            origin if is_good and origin is not None else (register, self._as_it_is(register))
            for origin, is_good, register in zip(origins, is_found, registers, strict=True)
        ]
        finest = [arrangement.finest(dim) for _, arrangement in pairs]
        # If all arrangements are split alike, no view of a part has to copy.
        is_alike = all(_without(each, dim) == _without(finest[0], dim) for each in finest)
        parts, shapes = [], []
        for (register, arrangement), fine in zip(pairs, finest, strict=True):
            plain = [[math.prod(sizes(each))] for each in arrangement.dims]
            shapes.append([size for each in (fine if is_alike else plain) for size in each])
            parts.append(self._arranged(register, arrangement, shapes[-1], join))
        place = sum(len(each) for each in finest[0][:dim]) if is_alike else dim
        whole = list(shapes[0])
        whole[place] = sum(shape[place] for shape in shapes)
        result = self._before(join.outputs[0], whole)
        self._write_join(parts, place, result, join)
        self._write_view(result, join.outputs[0], join)
        return True

    def _as_it_is(self, register: int) -> Arrangement:
        return Arrangement.of(self._shapes[register])

    def _origin(self, register: int, is_join: bool = False) -> tuple[int, Arrangement] | None:
        """Returns the source of a value that was only moved, and the arrangement of the moves.

        Args:
            register: register of the value.
            is_join: whether the source must be a joined gradient; if not, some move must copy.
        """
        chain: list[Instruction] = []
        is_alone, has_copy = True, False
        origins: list[tuple[int, int]] = []
        while (maker := self._makers.get(register)) is not None:
            is_alone = is_alone and self._is_only_read_once(register)
            if is_join and maker.target is _JOIN and is_alone:
                origins.append((register, len(chain)))
            if maker.target in _COPIES and is_alone:
                has_copy = True
            elif maker.target not in _VIEWS and maker.target not in PERMUTATIONS:
                break
            chain.append(maker)
            register = maker.args[0].index
            if has_copy and not is_join:
                origins.append((register, len(chain)))
        for origin, length in reversed(origins):
            arrangement = self._arrangement(origin, chain[:length][::-1])
            if arrangement is not None:
                return origin, arrangement
        return None

    def _arrangement(self, register: int, moves: Sequence[Instruction]) -> Arrangement | None:
        """Returns the arrangement of a register's value after a list of moves."""
        if 0 in self._shapes.get(register, (0,)):
            return None
        found: Arrangement | None = self._as_it_is(register)
        for move in moves:
            if found is None or move.outputs[0] not in self._shapes:
                return None
            if move.target in PERMUTATIONS:
                found = found.permuted(order_of(move, len(found.dims)))
            elif move.target in _VIEWS:
                found = found.viewed(self._shapes[move.outputs[0]])
        return found

    # Functions that add an instruction to the changed code.

    def _new(self, shape: Sequence[int]) -> int:
        register = self._code.new_register()
        self._shapes[register] = tuple(shape)
        return register

    def _before(self, result: int, shape: Sequence[int]) -> int:
        """Returns the register of the value with `shape` that will be viewed as `result`."""
        return result if self._shapes[result] == tuple(shape) else self._new(shape)

    def _write(self, instruction: Instruction) -> None:
        self._written.append(instruction)
        self._makers[instruction.outputs[0]] = instruction

    def _write_join(self, parts: Sequence[int], dim: int, result: int, like: Instruction) -> None:
        args = ([Register(part) for part in parts], dim)
        self._write(replace(like, target=_JOIN, args=args, kwargs={}, outputs=[result]))

    def _write_view(self, register: int, result: int, like: Instruction) -> None:
        if register == result:
            return
        args = (Register(register), list(self._shapes[result]))
        self._write(replace(like, target=aten.view.default, args=args, kwargs={}, outputs=[result]))

    def _viewed(self, register: int, shape: Sequence[int], like: Instruction) -> int:
        if self._shapes[register] == tuple(shape):
            return register
        result = self._new(shape)
        self._write_view(register, result, like)
        return result

    def _arranged(
        self, register: int, arrangement: Arrangement, shape: Sequence[int], like: Instruction
    ) -> int:
        """Returns the register of a value in another arrangement, viewed as `shape`."""
        order = arrangement.order
        if order != sorted(order):
            register = self._viewed(register, sizes(arrangement.split), like)
            result = self._new(sizes(arrangement.stretches))
            args = (Register(register), order)
            permute = aten.permute.default
            self._write(replace(like, target=permute, args=args, kwargs={}, outputs=[result]))
            register = result
        return self._viewed(register, shape, like)


def _part_of(instruction: Instruction) -> _Sum | None:
    """Returns the part of its result that an instruction fills, if the rest is zero."""
    if instruction.target not in (_SELECTED, _SLICED):
        return None
    value, shape, dim, *place = instruction.args
    shape = tuple(shape)
    dim %= len(shape)
    begin, end = _range(instruction.target, place, shape[dim])
    part = _Part(value.index, begin, end)
    return _Sum(shape, dim, (part,), instruction.node.meta["val"].dtype)


def _range(target: OpOverload, place: Sequence[int], size: int) -> tuple[int, int]:
    """Returns the first index and the end of a part; an empty range if the part has gaps."""
    if target is _SELECTED:
        return place[0] % size, place[0] % size + 1
    begin, end, _ = slice(*place).indices(size)
    return (begin, end) if place[2] == 1 else (begin, begin)


def _is_contiguous_copy(instruction: Instruction) -> bool:
    layout = instruction.kwargs.get("memory_format")
    return instruction.target is aten.clone.default and layout is torch.contiguous_format


def _without(shape: list[list[int]], dim: int) -> list[list[int]]:
    return shape[:dim] + shape[dim + 1 :]
