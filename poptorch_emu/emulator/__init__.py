"""What only an emulator can offer, beyond PopTorch's own names."""

from poptorch_emu.emulator.pipeline_order import set_schedule
from poptorch_emu.emulator.plans import memory, schedule, tile_memory
from poptorch_emu.emulator.streaming import stream
from poptorch_emu.emulator.way_on import export_pipeline, to_torch
from poptorch_emu.names.aliases import install
from poptorch_emu.ops.custom_operators import register_custom_op
from poptorch_emu.report.schedule_report import SchedulePlan

__all__ = [
    "SchedulePlan",
    "export_pipeline",
    "install",
    "memory",
    "register_custom_op",
    "schedule",
    "set_schedule",
    "stream",
    "tile_memory",
    "to_torch",
]
