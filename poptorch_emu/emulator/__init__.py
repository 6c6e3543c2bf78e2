"""What only an emulator can offer, beyond PopTorch's own names."""

from poptorch_emu.aliases import install
from poptorch_emu.emulator.streaming import stream

__all__ = ["install", "stream"]
