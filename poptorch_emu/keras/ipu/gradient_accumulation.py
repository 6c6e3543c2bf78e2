"""Enumerations for `set_gradient_accumulation_options`."""

from poptorch_emu.keras.settings.run_settings import GradientAccumulationReductionMethod

__all__ = ["GradientAccumulationReductionMethod"]
