"""The register that owns the memory of each value.

A view costs nothing, and keeps the memory of its base alive.
"""

from __future__ import annotations

from poptorch_emu.ir.operator_traits import traits_of
from poptorch_emu.segments.segment import Segment


def storage_of(segment: Segment) -> dict[int, int]:
    """Returns the register that owns the memory of each register: itself, unless it is a view."""
    storage: dict[int, int] = {}
    for instruction in segment.instructions:
        is_view = traits_of(instruction.target).is_view
        base = next(iter(instruction.reads), None) if is_view else None
        for output in instruction.outputs:
            storage[output] = output if base is None else storage.get(base, base)
    return storage
