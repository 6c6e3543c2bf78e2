"""What only an emulator can offer; PopTorch has nothing like it."""

from poptorch_emu.emulator.streaming import stream

__all__ = ["stream"]
