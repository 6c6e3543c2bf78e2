"""Finds the moment at which an IPU holds most while it runs its segments, in the machine model.

Unlike the engine, an IPU computes elementwise operations in place, applies or adds a gradient as
soon as it is computed, stores 64-bit numbers with 32 bits, and recomputes a dropout mask from its
seed. Beside the live values, the running operation uses temporary memory on each tile.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import fx

from poptorch_emu.ir.graph import operation_of, record_of
from poptorch_emu.machine.costs.code import Family
from poptorch_emu.machine.tile_memory import Peak
from poptorch_emu.plan.operations.operation_family import (
    bare_name,
    family_of,
    item_bytes,
    query_and_key,
)
from poptorch_emu.segments.segment import Instruction, Segment

_NUM_LARGEST = 10
_IN_PLACE = {Family.ELEMENTWISE, Family.BROADCAST, Family.RANDOM}


@dataclass(frozen=True)
class Walk:
    """Walks over the segments of an IPU and tracks the bytes that are live.

    Attributes:
        num_tiles: number of tiles that compute.
        temporary_bytes: returns the temporary bytes of an operation on each tile.
        title: returns the title of an operation or of another value, for reports.
    """

    num_tiles: int
    temporary_bytes: Callable[[fx.Node], int]
    title: Callable[[fx.Node], str]

    def peak(
        self,
        segment: Segment,
        given: Mapping[int, int],
        ending: frozenset[int] = frozenset(),
        base_bytes: int = 0,
    ) -> Peak:
        """Returns the moment at which a segment holds most.

        Args:
            segment: segment whose instructions list the registers that die with them.
            given: bytes by register of the segment's inputs, which it frees after their last use.
            ending: registers whose values, such as gradients, are freed as soon as they are
                computed.
            base_bytes: bytes that the IPU holds during the whole segment.
        """
        best = None
        for found, state in self.levels(segment, given, ending, base_bytes):
            if best is None or self.tile_bytes(found) > self.tile_bytes(best):
                best = replace(found, largest=state.largest(self.title))
        assert best is not None, "each segment has a beginning"
        return best

    def levels(
        self,
        segment: Segment,
        given: Mapping[int, int],
        ending: frozenset[int] = frozenset(),
        base_bytes: int = 0,
    ) -> Iterator[tuple[Peak, LiveState]]:
        """Yields the memory at the beginning of a segment and at each of its operations.

        The arguments are those of `peak`. All yielded states are one object, which changes.
        """
        state = LiveState(segment, given, base_bytes)
        yield Peak(state.num_bytes, 0, f"the beginning of {segment.name}"), state
        for instruction in segment.instructions:
            node = instruction.node
            state.begin(instruction)
            temporary = self.temporary_bytes(node)
            inner = self._of_bodies(instruction)
            num_bytes = state.num_bytes + inner.num_bytes + _hidden_bytes(node)
            temporary = max(temporary, inner.temporary_bytes)
            yield Peak(num_bytes, temporary, self._place(segment, node)), state
            state.end(instruction, ending)

    def _of_bodies(self, instruction: Instruction) -> Peak:
        """Returns the highest peak of the bodies of a loop or branch."""
        peaks = [self.peak(body.code, {}) for body in instruction.bodies]
        return max(peaks, key=self.tile_bytes, default=Peak(0, 0, ""))

    def _place(self, segment: Segment, node: fx.Node) -> str:
        source = record_of(node).source
        place = f"{self.title(node)}, in {segment.name}"
        return f"{place} ({source})" if source else place

    def tile_bytes(self, peak: Peak) -> float:
        """Returns the bytes on a tile at a peak, without the always-live bytes."""
        return peak.num_bytes / self.num_tiles + peak.temporary_bytes


class LiveState:
    """The live values at one instruction of a segment; a view uses the memory of its base."""

    def __init__(self, segment: Segment, given: Mapping[int, int], base_bytes: int) -> None:
        self._values = {register: node for node, register in segment.registers.items()}
        for inlined in segment.inlined:
            self._values |= {register: node for node, register in inlined.items()}
        self._base: dict[int, int] = {}
        self._held = dict(given)
        self._users = dict.fromkeys(given, 1)
        self._saved: dict[int, int] = {}  # Bytes that results at this instruction do not need.
        self.num_bytes = base_bytes + sum(given.values())

    def begin(self, instruction: Instruction) -> None:
        """Allocates the results; an elementwise one may reuse the memory of a dying argument."""
        family = family_of(instruction.node)
        reusable = self._reusable(instruction) if family in _IN_PLACE else 0
        # The base of a view is the last operand: a rounding first reads its random generator.
        base = list(instruction.reads)[-1:] if family is Family.VIEW else []
        self._saved = {}
        for output in instruction.outputs:
            if output < 0:
                continue
            root = self._base[output] = self._root(base[0]) if base else output
            if root == output:
                self._held[root] = machine_bytes(self._values[output])
                saved = min(reusable, self._held[root])
                self._saved[root] = saved
                reusable -= saved
                self.num_bytes += self._held[root] - saved
            if root in self._held:
                self._users[root] = self._users.get(root, 0) + 1

    def end(self, instruction: Instruction, ending: frozenset[int]) -> None:
        """Frees the values that are not needed any more."""
        self.num_bytes += sum(self._saved.values())
        done = [*instruction.dies, *(out for out in instruction.outputs if out in ending)]
        for root in map(self._root, done):
            if self._users.get(root):
                self._users[root] -= 1
                if not self._users[root]:
                    self.num_bytes -= self._held[root]

    def largest(
        self, title: Callable[[fx.Node], str], count: int = _NUM_LARGEST
    ) -> tuple[tuple[str, int], ...]:
        """Returns titles and bytes of the largest values that are live."""
        live = [root for root, count in self._users.items() if count and self._held[root]]
        live.sort(key=lambda root: -self._held[root])
        found = ((self._values.get(root), self._held[root]) for root in live[:count])
        return tuple((title(value) if value else "a value", held) for value, held in found)

    def contents(self) -> list[tuple[fx.Node | None, int]]:
        """Returns each live value with its bytes, which add up to the live bytes.

        The memory that a result takes over from a dying argument counts for the argument. A value
        without a node belongs to a loop.
        """
        live = (root for root, count in self._users.items() if count and self._held[root])
        return [
            (self._values.get(root), self._held[root] - self._saved.get(root, 0)) for root in live
        ]

    def _reusable(self, instruction: Instruction) -> int:
        """Returns the bytes of the largest argument that no later instruction reads."""
        roots = map(self._root, instruction.dies)
        return max((self._held[root] for root in roots if self._users.get(root) == 1), default=0)

    def _root(self, register: int) -> int:
        return self._base.get(register, register)


def machine_bytes(value: fx.Node) -> int:
    """Returns the bytes that a value of the graph takes on an IPU."""
    tensor: torch.Tensor = value.meta["val"]
    node = _operation(value)
    if node is None:
        return tensor.numel() * item_bytes(value, tensor)
    is_second = value.target is operator.getitem and value.args[1] == 1
    if is_second and family_of(node) is Family.ATTENTION and "backward" not in bare_name(node):
        return _scores_bytes(node)  # An IPU keeps the result of softmax, the engine its sums.
    if is_second and family_of(node) is Family.RANDOM:
        return 0  # The mask of a dropout is recomputed from its seed.
    return tensor.numel() * item_bytes(node, tensor)


def _hidden_bytes(node: fx.Node) -> int:
    """Returns the bytes that an operation holds on an IPU beside its results, while it runs."""
    if family_of(node) is not Family.ATTENTION:
        return 0
    return (2 if "backward" in bare_name(node) else 1) * _scores_bytes(node)


def _scores_bytes(node: fx.Node) -> int:
    """Returns the bytes of the scores of an attention, one for each pair of query and key."""
    query, key = query_and_key(node)
    num_scores = int(math.prod(query.shape[:-1])) * key.shape[-2]
    return num_scores * item_bytes(node, query)


def _operation(value: fx.Node) -> fx.Node | None:
    return operation_of(value) if value.op == "call_function" else None
