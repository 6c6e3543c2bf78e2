"""How much memory a segment needs besides what stays on the IPU anyway.

A view costs nothing, and keeps alive what it looks at.
"""

from __future__ import annotations

import torch

from poptorch_emu.compile.segment import Instruction, Segment

aten = torch.ops.aten

# Views whose schema does not say so.
_UNDECLARED_VIEWS = {aten._unsafe_view.default}


def num_bytes(value: torch.Tensor) -> int:
    """Returns how many bytes the elements of `value` take."""
    return value.numel() * value.element_size()


def register_bytes(segment: Segment) -> dict[int, int]:
    """Returns the size in bytes of each register that holds a value of the graph."""
    return {register: num_bytes(node.meta["val"]) for node, register in segment.registers.items()}


def storage_of(segment: Segment) -> dict[int, int]:
    """Returns for each register the one in whose memory its value is: itself, unless a view."""
    storage: dict[int, int] = {}
    for instruction in segment.instructions:
        base = next(instruction.reads(), None) if _is_view(instruction) else None
        for output in instruction.outputs:
            storage[output] = output if base is None else storage.get(base, base)
    return storage


def workspace_bytes(segment: Segment) -> int:
    """Returns the peak of bytes that the instructions of `segment` hold at once.

    Counted are the values they compute, from where they appear to where they die or the segment
    ends; what is loaded, or arrives by a link, lives elsewhere.
    """
    sizes, storage = register_bytes(segment), storage_of(segment)
    users: dict[int, int] = {}
    current = peak = 0
    for instruction in segment.instructions:
        for output in instruction.outputs:
            if output < 0:
                continue
            root = storage[output]
            if root not in storage:
                continue
            if root not in users:
                current += sizes.get(root, 0)
            users[root] = users.get(root, 0) + 1
        peak = max(peak, current)
        for dead in instruction.dies:
            root = storage.get(dead, dead)
            if root in users:
                users[root] -= 1
                if users[root] == 0:
                    current -= sizes.get(root, 0)
    return peak


def _is_view(instruction: Instruction) -> bool:
    alias = instruction.target._schema.returns
    declared = bool(alias) and alias[0].alias_info is not None and not alias[0].alias_info.is_write
    return declared or instruction.target in _UNDECLARED_VIEWS
