"""Compares speeds that the time model predicts with published speeds; see `fidelity.py`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from time_rows import TimeRow

from poptorch_emu.compile.compiler import Request
from poptorch_emu.compile.timing import time_of
from poptorch_emu.emulator.estimates import captured
from poptorch_emu.machine.spread import Subject
from poptorch_emu.machine.system import system_of
from poptorch_emu.machine.time_numbers import NUMBERS, TimeNumbers
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.plan.time.time_plan import TimePlan


@dataclass(frozen=True)
class Captured:
    """A row whose model was traced once, so that several sets of constants can be compared."""

    row: TimeRow
    request: Request
    inventory: Inventory

    @cached_property
    def _usual_plan(self) -> TimePlan:
        return self._plan(NUMBERS)

    def plan(self, numbers: TimeNumbers = NUMBERS) -> TimePlan:
        """Returns the time plan of a call."""
        return self._usual_plan if numbers is NUMBERS else self._plan(numbers)

    def _plan(self, numbers: TimeNumbers) -> TimePlan:
        system = system_of(self.row.system)
        return time_of(self.request, self.inventory, system, self.row.host, numbers)

    def predicted(self, numbers: TimeNumbers = NUMBERS) -> float:
        """Returns the prediction of the published quantity; a throughput even if it is rough."""
        if self.row.is_cycles:  # From a simulator of the chip, without a host.
            numbers = replace(numbers, host_sync_seconds=0.0)
        plan = self.plan(numbers)
        if self.row.is_cycles:
            return plan.cycles - numbers.call_seconds * plan.clock_hz
        return plan.samples_per_step / plan.step_seconds * self.row.items_per_row

    @property
    def published_time(self) -> float:
        """Published time of an item in seconds, or cycles of a call."""
        return self.row.published if self.row.is_cycles else 1 / self.row.published

    def amounts(self) -> dict[Subject, float]:
        """Returns the seconds of a step by subject; cycles of a simulator have no host."""
        amounts = self.plan().amounts
        return amounts | {Subject.HOST: 0.0} if self.row.is_cycles else amounts

    def error(self, numbers: TimeNumbers = NUMBERS) -> float:
        """Returns the prediction's relative error, from values rounded as in the files."""
        return round(self.predicted(numbers)) / round(self.row.published) - 1

    def figures(self) -> dict[str, object]:
        """Returns a row of `results/fidelity_time.csv`."""
        row = self.row
        return {
            "row": row.name,
            "model": row.what,
            "kind": row.kind.value,
            "family": row.family,
            "is_goal": int(row.is_goal),
            "unit": "cycles" if row.is_cycles else "items/s",
            "published": round(row.published),
            "predicted": round(self.predicted()),
        }


def capture(row: TimeRow) -> Captured:
    """Returns a row's model, traced on the meta device."""
    with torch.device("meta"):
        model, inputs = row.build()
    request, inventory = captured(model, inputs, {})
    model.destroy()
    return Captured(row, request, inventory)
