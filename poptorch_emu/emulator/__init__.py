"""What programs ask of the emulator itself, beyond PopTorch's own names."""

from poptorch_emu.emulator.pipeline_order import set_schedule
from poptorch_emu.emulator.plans import SchedulePlan, memory, schedule

__all__ = ["SchedulePlan", "memory", "schedule", "set_schedule"]
