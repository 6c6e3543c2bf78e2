"""Computes the memory that a segment needs beside the tensors that stay on the IPU."""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx

from poptorch_emu.segments.segment import Segment
from poptorch_emu.segments.storage import storage_of
from poptorch_emu.update.recorded import TEMPLATE_SHAPE


def register_bytes(segment: Segment) -> dict[int, int]:
    """Returns the size in bytes of each register that holds a value of the graph."""
    return {register: node.meta["val"].nbytes for node, register in segment.registers.items()}


def inlined_bytes(segment: Segment, elements: Mapping[int, int]) -> dict[int, int]:
    """Returns the bytes of each register of the update templates that `segment` was built from.

    Args:
        segment: segment of an update.
        elements: number of elements of each loaded register, for templates that fit any size.
    """
    sizes: dict[int, int] = {}
    for registers in segment.inlined:
        largest = max((elements.get(register, 0) for register in registers.values()), default=0)
        stand_ins: dict[fx.Node, int] = {}
        for node, register in registers.items():
            value = node.meta["val"]
            count = value.numel()
            if value.shape == TEMPLATE_SHAPE:
                inputs = [stand_ins[given] for given in node.all_input_nodes if given in stand_ins]
                count = stand_ins[node] = elements.get(register) or max(inputs, default=largest)
            sizes[register] = count * value.element_size()
    return sizes


def workspace_bytes(
    segment: Segment, sizes: Mapping[int, int], fetched: Mapping[int, int], at_end: int = 0
) -> int:
    """Returns the largest number of bytes that the instructions of `segment` hold at once.

    A computed value counts from its instruction until it dies or the segment ends. A fetched copy
    counts from the beginning. Other loaded tensors do not count, because they are stored elsewhere.

    Args:
        segment: segment whose instructions list the registers that die with them.
        sizes: bytes of the values, by register.
        fetched: bytes of the copies that loads and links make, by register.
        at_end: additional bytes that are needed after the last instruction.
    """
    storage = storage_of(segment)
    users = dict.fromkeys(fetched, 1)
    held = {**sizes, **fetched}
    current = peak = sum(fetched.values())
    for instruction in segment.instructions:
        for output in instruction.outputs:
            if output < 0:
                continue
            root = storage[output]
            if root not in storage and root not in fetched:
                continue
            if root not in users:
                current += held.get(root, 0)
            users[root] = users.get(root, 0) + 1
        peak = max(peak, current)
        for dead in instruction.dies:
            root = storage.get(dead, dead)
            if root in users:
                users[root] -= 1
                if users[root] == 0:
                    current -= held.get(root, 0)
    return max(peak, current + at_end)
