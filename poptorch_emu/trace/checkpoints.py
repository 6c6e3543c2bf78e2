"""Which values the user wants kept for backward, rather than computed again.

`recomputationCheckpoint` leaves a mark; at the end of the trace the mark goes into the record of
the operation, which every pass carries on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import fx

from poptorch_emu.ir.graph import operation_of, record_of

_marks: list[torch.Tensor] | None = None


def start_marks() -> None:
    """Begins to collect the checkpoints of a trace."""
    global _marks
    _marks = []


def mark(value: torch.Tensor) -> None:
    """Notes that `value` is a checkpoint; outside a trace, does nothing."""
    if _marks is not None:
        _marks.append(value)


def take_marks() -> list[torch.Tensor]:
    """Ends the collection and returns the checkpoints."""
    global _marks
    marks, _marks = _marks or [], None
    return marks


def apply_marks(find: Callable[[torch.Tensor], fx.Node | None]) -> None:
    """Ends the collection and writes it into the records of the operations that `find` knows."""
    for value in take_marks():
        node = find(value)
        if node is not None and node.op == "call_function":
            operation = operation_of(node)
            operation.meta["record"] = replace(record_of(operation), is_checkpoint=True)
