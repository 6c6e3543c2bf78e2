"""What this emulator offers beyond PopTorch's interface."""

from poptorch_emu.ops.custom_operators import register_custom_op

__all__ = ["register_custom_op"]
