"""The first cause of a plan, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.time_plans import made_of

from poptorch_emu.plan.time.step_parts import Part
from poptorch_emu.plan.time.time_plan import IpuTime, TimePlan
from poptorch_emu.report.bottleneck_text import bottleneck_text
from poptorch_emu.schedule.make import ScheduleKind

pytestmark = pytest.mark.feature("emulator.estimate", fidelity="modelled")

GROUPED = ScheduleKind.GROUPED
EVEN = [1.0] * 4


def spent(**seconds: float) -> TimePlan:
    """Returns a plan of one IPU whose step has these parts, in seconds."""
    parts = dict.fromkeys(Part, 0.0) | {Part[name]: value for name, value in seconds.items()}
    plan = made_of(GROUPED, [0], 1, [1.0], [1.0])
    return replace(plan, step_seconds=sum(parts.values()), ipus=(IpuTime(0, parts),))


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (made_of(GROUPED, range(4), 2, EVEN, EVEN), "filling and emptying the pipeline (75% of"),
        (
            made_of(GROUPED, range(4), 10_000, [1, 1, 4, 1], [1, 1, 4, 1]),
            "one slow stage (56% of a step, IPU 2 takes 2.29 times the mean)",
        ),
        (
            made_of(ScheduleKind.SHARDED, range(4), 8, EVEN, EVEN),
            "one IPU working at a time (75% of a step)",
        ),
        (made_of(GROUPED, [0], 2, [1.0], [1.0], 4.0), "the update (50% of a step)"),
        (made_of(GROUPED, [0], 8, [1.0], [1.0]), "computing (100% of a step)"),
        (spent(COMPUTE=2, DATA=2), "waiting for the host's own work (50% of a step)"),
        (spent(COMPUTE=2, SYNC=1, EXCHANGE=1), "small micro-batches (50% of a step)"),
        (spent(COMPUTE=97, CALL=3), "computing (97% of a step)"),
        (spent(COMPUTE=79, CALL=21), "starting calls (21% of a step)"),
        (spent(COMPUTE=81, CALL=19), "computing (81% of a step)"),
    ],
    ids=[
        "ramp",
        "imbalance",
        "turns",
        "update",
        "compute",
        "loader",
        "small",
        "no loss",
        "over a quarter",
        "under a quarter",
    ],
)
def test_first_cause_then_is_the_largest_loss_with_its_share(plan: TimePlan, text: str) -> None:
    assert bottleneck_text(plan).startswith(text)


def test_long_window_of_a_slow_ipu_then_is_no_ramp() -> None:
    plan = made_of(GROUPED, range(4), 256, [1, 1, 4, 1], [1, 1, 4, 1])
    assert plan.shares[Part.RAMP] < 0.03 < 0.5 < plan.shares[Part.IMBALANCE]
