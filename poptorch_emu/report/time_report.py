"""The predicted time of a step, as a table for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from poptorch_emu.plan.time.step_parts import Group, Part
from poptorch_emu.plan.time.time_plan import TimePlan
from poptorch_emu.printed.terminal import shortened
from poptorch_emu.report.bottleneck_text import bottleneck_text, spread_weight_text
from poptorch_emu.report.likely import likely_text
from poptorch_emu.report.pictures import axes_or_new, draw_stacks
from poptorch_emu.report.printed_report import PrintedReport, Table

_STAGE_PARTS = ("forward", "recompute", "backward", "weights")
_NUM_SHOWN = 5
# Columns of a row beside the name of the operation.
_BESIDE_NAME = 46


@dataclass(frozen=True)
class TimeReport(TimePlan, PrintedReport):
    """A plan of time that can be printed.

    The report shows the parts of each IPU's step, the stages, and the bottleneck.
    """

    @property
    def bottleneck(self) -> str:
        """The cause that the step loses most time to; `emulator.summary` suggests remedies."""
        return bottleneck_text(self)

    def _parts(self, columns: int) -> list[str | Table]:
        operations = Table(self._of_operations(columns), 2)
        tables = Table(self._of_ipus(), 1), Table(self._of_stages(), 1), operations
        return [*self._headlines(), *tables, *self._notes()]

    def plot(self, axes: Any = None) -> Any:
        """Draws the parts of each IPU's step, in milliseconds.

        Arguments, result and errors are those of `SchedulePlan.plot`.
        """
        axes = axes_or_new(axes, 4.0 + 0.5 * len(self.ipus), 4.0)
        parts = {part.word: [1e3 * ipu.seconds[part] for ipu in self.ipus] for part in Part}
        draw_stacks(axes, [f"IPU {ipu.ipu}" for ipu in self.ipus], parts)
        axes.set_ylabel("milliseconds of a step,\nby the model of the machine")
        return axes

    def _notes(self) -> list[str]:
        lines = [f"limited by {self.bottleneck}"]
        lines += [f"wrong: {spread_weight_text(weight)}" for weight in self.spread_weights]
        lines += [f"unknown: {name}, {share:.1%} of a segment" for name, share in self.unknown]
        lines += [f"rough: {reason}" for reason in self.rough]
        lines += [f"assumed: {text}" for text in self.assumptions]
        return [*lines, f"The least certain input of these figures is {self.evidence}."]

    def _headlines(self) -> list[str]:
        speed = (
            f"{self.throughput:,.1f} rows a second, likely {likely_text(self.speed)}"
            if self.speed is not None
            else "the throughput is not known: too many costs are unknown"
        )
        rough = " (rough)" if self.rough else ""
        step = f"a step of {self.samples_per_step:,} rows takes {time_text(self.step_seconds)}"
        machine = f"{self.system}, {self.num_replicas} x {len(self.ipus)} {self.chip} IPUs:"
        return [machine, f"{step}, {speed}{rough}"]

    def _of_ipus(self) -> list[list[str]]:
        """Returns a column for each IPU, and one for all of them together."""
        is_alone = len(self.ipus) == 1
        columns = [{p: s / self.step_seconds for p, s in ipu.seconds.items()} for ipu in self.ipus]
        columns += [] if is_alone else [self.shares]
        names = [f"IPU {ipu.ipu}" for ipu in self.ipus] + ([] if is_alone else ["all"])
        rows = [["share of the step", *names]]
        for part in Part:
            if any(column[part] for column in columns):
                rows.append([part.word, *(f"{column[part]:.1%}" for column in columns)])
        busy = (
            sum(column[part] for part in Part if part.group in (Group.WORK, Group.TRANSFER))
            for column in columns
        )
        return [*rows, ["busy", *(f"{share:.1%}" for share in busy)]]

    def _of_stages(self) -> list[list[str]]:
        rows = [["stage", "IPU", *(f"{name} ms" for name in _STAGE_PARTS), "all ms"]]
        for stage in self.stages:
            again = sum(part.recompute_cycles for part in stage.parts)
            later = stage.weights.recompute_cycles
            cycles = (
                stage.forward.cycles,
                again,
                stage.recompute.cycles + stage.backward.cycles - again + later,
                stage.weights.cycles - later,
                stage.cycles,
            )
            rows.append([str(stage.stage), str(stage.ipu), *map(self._milliseconds, cycles)])
        if not any(stage.weights.cycles for stage in self.stages):
            for row in rows:
                del row[_STAGE_PARTS.index("weights") + 2]
        return rows

    def _of_operations(self, columns: int) -> list[list[str]]:
        rows = [["slowest operations", "segment", "ms", "compute", "exchange", "sync"]]
        # Calls of the host have no cycles; the assumptions say that their time is unknown.
        timed = [operation for operation in self.operations() if operation.cycles]
        for operation in timed[:_NUM_SHOWN]:
            parts = (
                operation.compute_cycles,
                operation.exchange_cycles,
                operation.sync_cycles,
            )
            shares = (f"{part / operation.cycles:.0%}" for part in parts)
            time = self._milliseconds(operation.cycles)
            name = shortened(operation.name, columns - _BESIDE_NAME)
            rows.append([name, operation.segment, time, *shares])
        return rows

    def _milliseconds(self, cycles: float) -> str:
        return f"{cycles / self.clock_hz * 1e3:.3f}"


def time_text(seconds: float) -> str:
    """Returns a time in the unit that suits it."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1 or unit == "us":
            return f"{seconds * scale:.3g} {unit}"
    raise AssertionError("the last unit takes all")
