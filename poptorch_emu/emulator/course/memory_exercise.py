"""Exercise 3: make a model fit on two IPUs without making it slow."""

from __future__ import annotations

from poptorch_emu.emulator.course.exercise import Exercise, Findings, Wrapped
from poptorch_emu.emulator.course.placing import (
    SYSTEM,
    evenly,
    fault_of_ipus,
    half_layers,
    plain_options,
)
from poptorch_emu.emulator.estimates import estimate
from poptorch_emu.emulator.plans import tile_memory
from poptorch_emu.machine.ipu import KIB
from poptorch_emu.options import Options

HIDDEN, WIDTH, NUM_IPUS = (4096,) * 8, 1024, 2
ROWS_OF_UPDATE, ACCUMULATION = 32_768, 16
# Lowest accepted speed, as a share of the speed that the unchanged model would have if it fitted.
LEAST_SPEED = 0.8


def _wrap(options: Options) -> Wrapped:
    rows = ROWS_OF_UPDATE * options.device_iterations * options.replication_factor
    ipus = evenly(len(HIDDEN), NUM_IPUS)
    return half_layers(HIDDEN, WIDTH, rows, options.clone(), ipus)


def _assess(options: Options) -> Findings:
    accumulation = options.Training.gradient_accumulation
    if options.replication_factor > 1:
        return Findings((
            f"There are {NUM_IPUS} IPUs, but {options.replication_factor} replicas need more.",
        ))  # fmt: skip
    if ROWS_OF_UPDATE % accumulation:
        return Findings((
            f"{ROWS_OF_UPDATE:,} rows of an update cannot be divided into "
            f"{accumulation} micro-batches of the same size.",
        ))  # fmt: skip
    wrapped = _wrap(options)
    report = estimate(*wrapped, system=SYSTEM)
    if fault := fault_of_ipus(report, NUM_IPUS):
        return Findings((fault,))
    tiles, speed = tile_memory(*wrapped, system=SYSTEM), report.throughput
    needed = LEAST_SPEED * _usual_speed()
    limit = tiles.chip.tile_bytes / KIB
    faults = []
    if tiles.worst_verdict != "yes":
        faults.append(
            f"It {'may' if tiles.fits else 'does'} not fit: the fullest tile would hold "
            f"{tiles.most / KIB} KiB, but has {limit:.0f}. "
            "emulator.tile_memory says what the largest parts are."
        )
    if speed is None or speed < needed:
        faults.append(
            f"It is too slow: {speed or 0:,.0f} rows a second, but {needed:,.0f} are asked for. "
            "emulator.estimate says where the time goes; some remedies cost less of it."
        )
    facts = (
        f"{tiles.most / KIB} of {limit:.0f} KiB on the fullest tile.",
        f"{report.speed} rows a second.",
    )
    return Findings(tuple(faults), facts)


def _usual_speed() -> float:
    return estimate(*_wrap(plain_options(ACCUMULATION)), system=SYSTEM).throughput or 0.0


EXERCISE = Exercise("fit it into memory", "poptorch.Options()", (Options,), _assess, _wrap)
