"""Functions that only an emulator can offer, beyond PopTorch's names."""

from typing import NoReturn

from poptorch_emu.emulator import course, schedules
from poptorch_emu.emulator.comparisons import compare_schedules
from poptorch_emu.emulator.estimates import estimate, timeline
from poptorch_emu.emulator.exports import export_pipeline, to_torch
from poptorch_emu.emulator.host_recomputation import set_recomputation
from poptorch_emu.emulator.lab import lab
from poptorch_emu.emulator.latencies import set_latencies
from poptorch_emu.emulator.live_lab import live_lab
from poptorch_emu.emulator.numbers_comparisons import compare, first_nonfinite, record
from poptorch_emu.emulator.numerics_reports import numerics
from poptorch_emu.emulator.page import page
from poptorch_emu.emulator.pipeline_order import set_schedule
from poptorch_emu.emulator.plans import memory, schedule, tile_memory
from poptorch_emu.emulator.reports import read_report, report, summary, trace
from poptorch_emu.emulator.showing import show
from poptorch_emu.emulator.splits import autoplace, plan_split
from poptorch_emu.emulator.streaming import stream
from poptorch_emu.emulator.training_logs import log_training
from poptorch_emu.emulator.value_guards import set_value_guards
from poptorch_emu.emulator.what_ifs import what_if
from poptorch_emu.names.aliases import install
from poptorch_emu.near_names import no_attribute
from poptorch_emu.numbers.verdicts import Verdict
from poptorch_emu.ops.custom_operators import register_custom_op
from poptorch_emu.plan.time.time_plan import HostWork, TimePlan
from poptorch_emu.report.schedule_report import SchedulePlan

__all__ = [
    "HostWork",
    "SchedulePlan",
    "TimePlan",
    "Verdict",
    "autoplace",
    "compare",
    "compare_schedules",
    "course",
    "estimate",
    "export_pipeline",
    "first_nonfinite",
    "install",
    "lab",
    "live_lab",
    "log_training",
    "memory",
    "numerics",
    "page",
    "plan_split",
    "read_report",
    "record",
    "register_custom_op",
    "report",
    "schedule",
    "schedules",
    "set_latencies",
    "set_recomputation",
    "set_schedule",
    "set_value_guards",
    "show",
    "stream",
    "summary",
    "tile_memory",
    "timeline",
    "trace",
    "what_if",
    "to_torch",
]


def __getattr__(name: str) -> NoReturn:
    raise no_attribute("poptorch_emu.emulator", name, __all__)
