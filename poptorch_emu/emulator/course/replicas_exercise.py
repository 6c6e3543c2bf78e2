"""Exercise 6: divide sixteen IPUs into replicas and stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from poptorch_emu.emulator.course.exercise import Exercise, Findings, Wrapped
from poptorch_emu.emulator.course.placing import SYSTEM, evenly, half_layers, plain_options
from poptorch_emu.emulator.estimates import estimate
from poptorch_emu.emulator.plans import tile_memory
from poptorch_emu.machine.ipu import KIB
from poptorch_emu.machine.spread import Figure

HIDDEN, WIDTH = (4096,) * 16, 1024
TOTAL_IPUS, ROWS, ROWS_OF_UPDATE = 16, 256, 8192
_NAMES = ("num_ipus", "replicas")
_CHOICES = (1, 2, 4, 8, 16)


def _wrap(answer: Mapping[str, int]) -> Wrapped:
    num_ipus, replicas = (answer[name] for name in _NAMES)
    options = plain_options(ROWS_OF_UPDATE // (ROWS * replicas)).replicationFactor(replicas)
    ipus = evenly(len(HIDDEN), num_ipus)
    return half_layers(HIDDEN, WIDTH, ROWS_OF_UPDATE, options, ipus)


def _fault_of_numbers(answer: Mapping[str, Any]) -> str:
    if sorted(answer) != sorted(_NAMES):
        return f"The dictionary has the keys {list(answer)}, but it should have {list(_NAMES)}."
    for name in _NAMES:
        if answer[name] not in _CHOICES:
            return f"{name} is {answer[name]!r}, but it should be one of {list(_CHOICES)}."
    used = answer["num_ipus"] * answer["replicas"]
    if used > TOTAL_IPUS:
        return f"That takes {used} IPUs, but there are {TOTAL_IPUS}."
    return ""


def _assess(answer: Mapping[str, int]) -> Findings:
    fault = _fault_of_numbers(answer)
    if fault:
        return Findings((fault,))
    num_ipus, replicas = (answer[name] for name in _NAMES)
    plan = _planned(num_ipus, replicas)
    facts = f"{plan.fullest} KiB on the fullest tile.", f"{plan.speed} rows a second."
    if not plan.fits:
        return Findings(("It does not fit: give each replica more IPUs.",), facts)
    rivals = [_planned(count, TOTAL_IPUS // count) for count in _CHOICES]
    fastest = max(rival.rows_per_second for rival in rivals if rival.fits)
    if plan.rows_per_second >= fastest:
        return Findings((), facts)
    idle = TOTAL_IPUS - num_ipus * replicas
    if idle:
        return Findings((f"It leaves {idle} of {TOTAL_IPUS} IPUs idle.",), facts)
    return Findings(
        (
            "Another division of the IPUs fits and is faster. A long pipeline waits for its "
            "slowest stage, and fills and drains for longer: how few stages does the memory allow?",
        ),
        facts,
    )


@dataclass(frozen=True)
class _Plan:
    """Memory and speed of one division of the IPUs."""

    fits: bool
    fullest: str
    speed: Figure | None

    @property
    def rows_per_second(self) -> float:
        return self.speed.value if self.speed else 0.0


@cache
def _planned(num_ipus: int, replicas: int) -> _Plan:
    wrapped = _wrap({"num_ipus": num_ipus, "replicas": replicas})
    tiles = tile_memory(*wrapped, system=SYSTEM)
    fullest = f"{tiles.most / KIB} of {tiles.chip.tile_bytes / KIB:.0f}"
    return _Plan(tiles.fits, fullest, estimate(*wrapped, system=SYSTEM).speed)


EXERCISE = Exercise(
    "replicas against stages", "a dictionary such as {'num_ipus': 2, 'replicas': 8}", (Mapping,),
    _assess, _wrap,
)  # fmt: skip
