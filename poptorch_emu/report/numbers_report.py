"""Two runs of a model side by side, as text for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from poptorch_emu.numbers.run import Value
from poptorch_emu.numbers.verdicts import Difference, NumbersComparison, Verdict
from poptorch_emu.report.printed_report import PrintedReport, Table
from poptorch_emu.troubleshooting import Topic


@dataclass(frozen=True)
class NumbersReport(NumbersComparison, PrintedReport):
    """A comparison that can be printed (exact).

    The report has the verdict, the first difference, and a line for each module and direction.
    """

    def _parts(self, columns: int) -> list[str | Table]:
        is_fault = self.verdict >= Verdict.DIFFERENT
        hint = [f"How to go on: {Topic.MY_LOSS_DIFFERS}"] if is_fault else []
        return [*self._head(), "", Table(self._rows(), 3), *self.notes, *hint]

    def _head(self) -> Iterator[str]:
        yield (
            f"{self.verdict}: {self.ours} against {self.theirs}, {self.num_operations} values "
            f"compared, {self.num_missing} without a counterpart"
        )
        if self.first is not None:
            yield from _told(self.first, self.theirs)

    def _rows(self) -> list[list[str]]:
        rows = [["module", "direction", "verdict", "values", "equal", "difference"]]
        for row in self.modules:
            verdict = "equal bits" if row.verdict is Verdict.EQUAL else str(row.verdict)
            rows.append([
                row.module or "(model)", row.direction.value, verdict, str(row.num_values),
                str(row.num_equal), f"{row.relative:.1e}" if row.relative else "0",
            ])  # fmt: skip
        return rows


def _told(first: Difference, theirs: str) -> Iterator[str]:
    """Yields the lines about the first difference."""
    value, shown = first.value, first.sample
    micro_batch, replica = first.position
    yield f"first: {value.title} {where(value)}, micro-batch {micro_batch}, replica {replica}"
    if first.reason:
        yield f"  {first.reason}"
    yield f"  here {shown.ours}, {theirs} {shown.theirs}"
    for index, ours, other in shown.numbers:
        yield f"  {list(index)}: {ours:.9g} here, {other:.9g} there"
    if shown.numbers:
        largest = f"{shown.largest:.3g}, {shown.relative:.1e} of the largest number"
        yield f"  largest difference {largest}"
    if first.equal_inputs:
        yield f"  inputs that are still equal: {', '.join(first.equal_inputs)}"
    if first.verdict >= Verdict.DIFFERENT:
        for text, values in (("only here", first.only_ours), ("only there", first.only_theirs)):
            if values:
                yield f"  {text}: {'; '.join(f'{v.title} {where(v)}' for v in values)}"


def where(value: Value) -> str:
    """Returns the module, direction and source line of a value."""
    line = line_of(value)
    parts = [f"in '{value.module}'" if value.module else "", f"({value.direction.value})"]
    return " ".join(filter(None, [*parts, f"at {line}" if line else ""]))


def line_of(value: Value) -> str:
    """Returns the "file:line" of a value, without the folder; "" if it has none."""
    file, _, line = value.line.rpartition(":")
    return f"{PurePath(file).name}:{line}" if file else ""
