"""A split of a model over IPUs, as a table and as code."""

from __future__ import annotations

from dataclasses import dataclass

from poptorch_emu.machine.ipu import KIB
from poptorch_emu.plan.time.split import Split
from poptorch_emu.report.text_table import to_table


@dataclass(frozen=True)
class SplitReport(Split):
    """A split that can be printed, and pasted."""

    @classmethod
    def of(cls, split: Split) -> SplitReport:
        """Returns `split` with its table."""
        return cls(**vars(split))

    def code(self, model: str = "model") -> str:
        """Returns the lines that make this split.

        Args:
            model: the name of the user's module, where its modules become blocks.
        """
        if self.is_of_blocks:
            stages = ",\n".join(
                f"    poptorch.Stage({', '.join(map(repr, stage.units))}).ipu({stage.ipu})"
                for stage in self.stages
            )
            return f"options.setExecutionStrategy(poptorch.PipelinedExecution(\n{stages},\n))"
        increment = "poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement)"
        order = f"options.setExecutionStrategy({increment})\n" if self.is_circle else ""
        return order + "\n".join(
            f"poptorch.BeginBlock({model}.get_submodule({stage.units[0]!r}), ipu_id={stage.ipu})"
            for stage in self.stages
        )

    def __str__(self) -> str:
        """Returns a line for each stage, and the code."""
        rows = [["IPU", "ms", "fullest tile KiB", "units"]]
        for stage in self.stages:
            first, last = stage.units[0], stage.units[-1]
            units = first if first == last else f"{first} ... {last} ({len(stage.units)})"
            milliseconds = f"{stage.cycles / self.clock_hz * 1e3:.3f}"
            rows.append([str(stage.ipu), milliseconds, f"{stage.tile_bytes / KIB:.0f}", units])
        lines = to_table([row[::-1] for row in rows], num_left=1)
        if not self.fits:
            lines.append("No split fits; this one is the fastest.")
        return "\n".join([*lines, "", self.code()])
