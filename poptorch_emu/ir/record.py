"""The record of an operation: its block, its phase, and the user's line.

Every node of a graph carries one `NodeRecord`. Records know neither graphs nor tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Phase(Enum):
    """The part of a training step that contains an operation."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


@dataclass(frozen=True)
class BlockPlace:
    """The stage, IPU and phase of one block, in the user's numbers."""

    block_id: str
    stage: int
    ipu: int
    phase: int = 0


BEFORE_FIRST_BLOCK = BlockPlace(block_id="", stage=0, ipu=0)


@dataclass(frozen=True)
class NodeRecord:
    """Origin of one operation.

    Attributes:
        place: block that was open; for a backward operation, the block of its forward operation.
        phase: forward, backward or update.
        module: dotted path of the innermost module whose `forward` was running.
        source: "file:line" of the user's code.
        is_anonymous: whether the operation has no block of its own, for example a sum of gradients;
            its place then follows its inputs.
        is_checkpoint: whether the user wants its results kept for backward, not recomputed.
        recomputed_call: number of the checkpointed call that contains it, which backward runs
            again; 0 outside of such calls.
        is_loss: whether its first result is the loss that is differentiated.
        scope: names that the user gave by `NameScope`, joined by slashes.
        available_memory_proportion: part of the IPU's memory that the user allows the operation.
        attributes: values that the user attached by `Attribute`; shared, never changed.
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
