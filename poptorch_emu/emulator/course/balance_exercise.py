"""Exercise 4: cut twelve unequal layers into stages of equal duration."""

from __future__ import annotations

from collections.abc import Sequence

from poptorch_emu.emulator.course.exercise import Exercise, Findings, Wrapped
from poptorch_emu.emulator.course.placing import (
    SYSTEM,
    evenly,
    fault_of_blocks,
    fault_of_ipus,
    half_layers,
    ipus_in_order,
    plain_options,
)
from poptorch_emu.emulator.estimates import estimate
from poptorch_emu.emulator.splits import plan_split
from poptorch_emu.options import PipelinedExecution, Stage
from poptorch_emu.report.time_report import TimeReport

HIDDEN, WIDTH, NUM_IPUS = (512,) * 6 + (1024,) * 3 + (4096,) * 3, 512, 4
_ROWS, _ACCUMULATION = 256, 32
# Lowest accepted speed, as a share of the speed of the best cut.
LEAST_SPEED = 0.97


def _wrap(strategy: PipelinedExecution) -> Wrapped:
    options = plain_options(_ACCUMULATION).setExecutionStrategy(strategy)
    ipus = evenly(len(HIDDEN), NUM_IPUS)
    return half_layers(HIDDEN, WIDTH, _ROWS * _ACCUMULATION, options, ipus)


def _assess(strategy: PipelinedExecution) -> Findings:
    if fault := fault_of_blocks(strategy, len(HIDDEN)):
        return Findings((fault,))
    report = estimate(*_wrap(strategy), system=SYSTEM)
    if fault := fault_of_ipus(report, NUM_IPUS):
        return Findings((fault,))
    best = estimate(*_wrap(_best_cut(ipus_in_order(report))), system=SYSTEM)
    milliseconds = [stage.cycles / report.clock_hz * 1e3 for stage in report.stages]
    facts = (
        f"The stages take {', '.join(f'{one:.2f}' for one in milliseconds)} ms for a micro-batch: "
        f"{report.speed} rows a second.",
    )
    if _speed(report) >= LEAST_SPEED * _speed(best):
        return Findings((), facts)
    slowest = max(report.stages, key=lambda stage: stage.cycles)
    return Findings(
        (
            f"Another cut gives {_speed(best):,.0f} rows a second. Stage {slowest.stage} is the "
            "slowest, and the others wait for it: move a block from it to a neighbour, and look "
            "again.",
        ),
        facts,
    )


def _best_cut(ipus: Sequence[int]) -> PipelinedExecution:
    """Returns the best cut, whose stages are on `ipus` in order."""
    wrapped = _wrap(PipelinedExecution())
    split = plan_split(*wrapped, num_ipus=NUM_IPUS, system=SYSTEM)
    stages = zip(split.stages, ipus, strict=True)
    return PipelinedExecution(*(Stage(*stage.units).ipu(ipu) for stage, ipu in stages))


def _speed(report: TimeReport) -> float:
    return report.throughput or 0.0


EXERCISE = Exercise(
    "balance", "poptorch.PipelinedExecution(...) with four stages", (PipelinedExecution,),
    _assess, _wrap,
)  # fmt: skip
