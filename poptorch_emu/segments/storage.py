"""In whose memory a value lies, and how many bytes it takes there.

A view costs nothing, and keeps alive what it looks at.
"""

from __future__ import annotations

from functools import cache

import torch

from poptorch_emu.segments.segment import Segment

aten = torch.ops.aten

# Views whose schema does not say so.
_UNDECLARED_VIEWS = {aten._unsafe_view.default}


def num_bytes(value: torch.Tensor) -> int:
    """Returns how many bytes the elements of `value` take."""
    return value.numel() * value.element_size()


def storage_of(segment: Segment) -> dict[int, int]:
    """Returns for each register the one in whose memory its value is: itself, unless a view."""
    storage: dict[int, int] = {}
    for instruction in segment.instructions:
        base = next(instruction.reads(), None) if is_view(instruction.target) else None
        for output in instruction.outputs:
            storage[output] = output if base is None else storage.get(base, base)
    return storage


@cache
def is_view(target: torch._ops.OpOverload) -> bool:
    """Returns whether the result of an operation lies in the memory of its first tensor."""
    alias = target._schema.returns
    declared = bool(alias) and alias[0].alias_info is not None and not alias[0].alias_info.is_write
    return declared or target in _UNDECLARED_VIEWS
