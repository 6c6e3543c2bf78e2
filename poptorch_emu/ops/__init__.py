"""Operations that PopTorch adds to PyTorch's; outside a trace they are plain PyTorch."""

from poptorch_emu.ops.control_flow import cond, for_loop
from poptorch_emu.ops.identities import (
    identity_loss,
    nop,
    recomputationCheckpoint,
    set_available_memory,
)

__all__ = [
    "cond",
    "for_loop",
    "identity_loss",
    "nop",
    "recomputationCheckpoint",
    "set_available_memory",
]
