"""Strategies of several processes."""

from poptorch_emu.keras.ipu.distributed import popdist_strategy

__all__ = ["popdist_strategy"]
