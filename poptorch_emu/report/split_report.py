"""A split of a model over IPUs, as a table and as code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from poptorch_emu.machine.ipu import KIB
from poptorch_emu.plan.time.split import Split
from poptorch_emu.report.printed_report import Code, PrintedReport, Table

# Columns for the names in a line of code, beside the text around them.
_CODE_COLUMNS = 50
_TOO_LARGE = (
    "No split fits into the memory of the IPUs. This one needs the least memory on its fullest "
    "tile."
)


@dataclass(frozen=True)
class SplitReport(Split, PrintedReport):
    """A split that can be printed, with code to paste."""

    def code(self, model: str = "model") -> str:
        """Returns the lines of code that apply this split.

        Args:
            model: name of the variable with the user's module, whose submodules become blocks.
        """
        if self.is_of_blocks:
            return stages_code((stage.ipu, stage.units) for stage in self.stages)
        lines = [f"poptorch.removeBlocks({model})"] if self.replaces_blocks else []
        if self.is_circle or self.replaces_blocks:
            stages = "AutoIncrement" if self.is_circle else "SameAsIpu"
            strategy = f"poptorch.PipelinedExecution(poptorch.AutoStage.{stages})"
            lines.append(f"options.setExecutionStrategy({strategy})")
        lines += (
            f"poptorch.BeginBlock({model}.get_submodule({stage.units[0]!r}), ipu_id={stage.ipu})"
            for stage in self.stages
        )
        return "\n".join(lines)

    def _parts(self, columns: int) -> Iterator[str | Table]:
        yield Table(self._rows(), 1)
        if not self.fits:
            yield _TOO_LARGE
        yield ""
        yield Code(self.code())

    def _rows(self) -> list[list[str]]:
        rows = [["units", "fullest tile KiB", "ms", "IPU"]]
        for stage in self.stages:
            first, last = stage.units[0], stage.units[-1]
            units = first if first == last else f"{first} ... {last} ({len(stage.units)})"
            milliseconds = f"{stage.cycles / self.clock_hz * 1e3:.3f}"
            rows.append([units, f"{stage.tile_bytes / KIB:.0f}", milliseconds, str(stage.ipu)])
        return rows


def stages_code(stages: Iterable[tuple[int, Sequence[str]]]) -> str:
    """Returns the lines of code that put blocks on IPUs.

    Args:
        stages: number of the IPU, and names of the blocks, of each stage.
    """
    lines = ",\n".join(f"    poptorch.Stage({_filled(names)}).ipu({ipu})" for ipu, names in stages)
    return f"options.setExecutionStrategy(poptorch.PipelinedExecution(\n{lines},\n))"


def _filled(names: Sequence[str]) -> str:
    """Returns names as arguments of a call, in lines of limited width."""
    lines = [""]
    for text in map(repr, names):
        if lines[-1] and len(lines[-1]) + len(text) > _CODE_COLUMNS:
            lines.append("")
        lines[-1] += f"{text}, "
    return f"\n{' ' * 8}".join(line.rstrip() for line in lines).removesuffix(",")
