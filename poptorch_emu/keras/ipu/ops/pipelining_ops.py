"""Choices for `set_pipelining_options`."""

from poptorch_emu.keras.run_settings import PipelineSchedule, RecomputationMode

__all__ = ["PipelineSchedule", "RecomputationMode"]
