"""What programs ask of the emulator itself, beyond PopTorch's own names."""

from poptorch_emu.aliases import install

__all__ = ["install"]
