"""What is known about each operation of a graph besides its arguments.

Every node carries one `NodeRecord`: where the user put it, which phase it belongs to, and which
line of the user's code it came from. This module knows neither graphs nor tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Phase(Enum):
    """When an operation runs."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


@dataclass(frozen=True)
class BlockPlace:
    """Where the operations of one block go; `stage` and `ipu` are the user's numbers."""

    block_id: str
    stage: int
    ipu: int
    phase: int = 0


BEFORE_FIRST_BLOCK = BlockPlace(block_id="", stage=0, ipu=0)


@dataclass(frozen=True)
class NodeRecord:
    """Origin of one operation.

    Attributes:
        place: the block that was open; for a backward operation, that of its forward operation.
        phase: forward, backward or update.
        module: dotted path of the innermost module whose `forward` was running.
        source: "file:line" of the user's code.
        scope: names the user gave by `NameScope`, joined by slashes.
        available_memory_proportion: part of the IPU's memory that the user gives the operation.
        attributes: what the user attached by `Attribute`; shared, never changed.
        is_anonymous: nobody named a place (a sum of gradients, say); it follows its inputs.
        is_checkpoint: the user wants its results kept for backward, not computed again.
        recomputed_call: number of the checkpointed call that it is part of, or 0: the user wants
            backward to run the operations of that call again.
        is_loss: its (first) result is the loss that is differentiated.
    """

    place: BlockPlace = BEFORE_FIRST_BLOCK
    phase: Phase = Phase.FORWARD
    module: str = ""
    source: str = ""
    is_anonymous: bool = False
    is_checkpoint: bool = False
    recomputed_call: int = 0
    is_loss: bool = False
    scope: str = ""
    available_memory_proportion: float | None = None
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, compare=False)
