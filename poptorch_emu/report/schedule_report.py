"""When each IPU runs what, as a grid for people."""

from __future__ import annotations

from dataclasses import dataclass

from poptorch_emu.compile.executable import Executable
from poptorch_emu.ir.graph import record_of
from poptorch_emu.plan.memory.memory_plan import Movement
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.grid import to_csv, to_grid
from poptorch_emu.schedule.phase_numbers import PhaseNumbers
from poptorch_emu.schedule.schedule import Schedule
from poptorch_emu.schedule.stash import stash_depths
from poptorch_emu.schedule.transfers import Transfer
from poptorch_emu.segments.phases import phase_numbers


@dataclass(frozen=True)
class SchedulePlan:
    """When each IPU runs what, in one window: the micro-batches of one weight update or one call.

    Attributes:
        grid: the actions; `2F0` is the forward of stage 2 for micro-batch 0, B its backward and
            `0U0` the weight update of IPU 0.
        ipu_ids: the user's number of each virtual IPU.
        blocks: the blocks of each stage; "" stands for what comes before the first block.
        phase_of_stage: the user's phase of each stage; `None` unless execution is phased.
        phases: how the phases are numbered; `None` unless execution is phased.
        movements: what each segment moves between streaming memory and its IPU.
        transfers: inputs and outputs that cross between host and IPU while it computes.
    """

    grid: Schedule
    ipu_ids: tuple[int, ...]
    blocks: tuple[tuple[str, ...], ...]
    phase_of_stage: tuple[int, ...] | None = None
    phases: PhaseNumbers | None = None
    movements: tuple[Movement, ...] = ()
    transfers: tuple[Transfer, ...] = ()

    @classmethod
    def of(cls, executable: Executable) -> SchedulePlan:
        """Returns what each IPU of a compiled model runs, and when."""
        config, places = executable.config, executable.partition.places
        is_phased = config.strategy.is_phased
        return cls(
            grid=executable.schedule,
            ipu_ids=executable.partition.ipu_ids,
            blocks=_blocks(executable),
            phase_of_stage=tuple(place.phase for place in places) if is_phased else None,
            phases=phase_numbers(config.strategy, config.is_training) if is_phased else None,
            movements=executable.memory.movements,
            transfers=executable.transfers,
        )

    def __str__(self) -> str:
        """Returns the grid of IPUs and time, its parts marked, and a line for each stage.

        In between is a line for each segment that uses streaming memory. A row of I/O shows what
        crosses beside the compute: `0I1` is input 0 of micro-batch 1, `0O1` an output; `+` marks
        what is the next window's, `-` what is of the one before.
        """
        depths = stash_depths(self.grid)
        lines = [to_grid(self.grid, transfers=self.transfers), ""]
        if self.movements:
            lines += [*map(_movement_text, self.movements), ""]
        for stage, ipu in enumerate(self.grid.ipu_of_stage):
            blocks = " ".join(self.blocks[stage])
            line = f"stage {stage}: IPU {self.ipu_ids[ipu]}, blocks {blocks}"
            if self.grid.is_training:
                line += f", stashes {depths[stage]}"
            lines.append(line + self._phase_text(stage))
        return "\n".join(lines)

    def to_csv(self) -> str:
        """Returns one line for each IPU and one cell for each slot."""
        return to_csv(self.grid)

    def _phase_text(self, stage: int) -> str:
        if self.phases is None or self.phase_of_stage is None:
            return ""
        phase = self.phase_of_stage[stage]
        text = f", phase {self.phases.forward[phase]}"
        return f"{text} and {self.phases.backward[phase]}" if self.phases.backward else text


def _movement_text(moved: Movement) -> str:
    loaded, stored = moved.loaded_bytes / 1024, moved.stored_bytes / 1024
    return f"{moved.segment}: streaming memory gives {loaded:.1f} KiB and takes {stored:.1f} KiB"


def _blocks(executable: Executable) -> tuple[tuple[str, ...], ...]:
    """Returns the blocks of the forward operations of each stage, in order."""
    found: list[dict[str, None]] = [{} for _ in executable.partition.ipu_of_stage]
    for node in executable.graph.operations:
        kind, stage = executable.partition.port_of[node]
        if kind is Kind.FORWARD:
            found[stage].setdefault(record_of(node).place.block_id)
    return tuple(tuple(blocks) for blocks in found)
