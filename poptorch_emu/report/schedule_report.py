"""The actions of each IPU over time, as a grid for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from poptorch_emu.compile.executable import PlacedGraph
from poptorch_emu.config import CompileConfig
from poptorch_emu.ir.operator_traits import traits_of
from poptorch_emu.ir.record import Phase
from poptorch_emu.machine.ipu import KIB
from poptorch_emu.machine.tile_memory import TileMemory
from poptorch_emu.plan.memory.memory_plan import Movement
from poptorch_emu.plan.time.time_plan import TimePlan
from poptorch_emu.printed.records import WithRecords
from poptorch_emu.printed.terminal import fitted_table, html_lines, terminal_width, wrapped
from poptorch_emu.report.pictures import shaded
from poptorch_emu.report.schedule_grid import grid_rows
from poptorch_emu.report.schedule_picture import draw_schedule, shades_of, shown_slots
from poptorch_emu.report.terms import TERMS, ink_on
from poptorch_emu.schedule.csv_text import to_csv
from poptorch_emu.schedule.free_run import FreeRun, free_run
from poptorch_emu.schedule.phase_numbers import PhaseNumbers
from poptorch_emu.schedule.pytorch_text import pytorch_rows
from poptorch_emu.schedule.schedule import Schedule
from poptorch_emu.schedule.stash import stash_depths
from poptorch_emu.schedule.transfers import Transfer
from poptorch_emu.segments.phases import phase_numbers
from poptorch_emu.segments.recomputation import recomputation_of, recomputed_operations
from poptorch_emu.segments.segment import Instruction
from poptorch_emu.segments.segmented_graph import cut
from poptorch_emu.untrusted.texts import as_html

_TERM_OF_LETTER = {
    letter: TERMS[word]
    for letter, word in {
        "F": "forward",
        "R": "recompute",
        "B": "backward",
        "I": "backward",
        "W": "weights",
        "U": "update",
    }.items()
}


@dataclass(frozen=True)
class SchedulePlan(WithRecords):
    """The actions of each IPU in one window: one weight update, or one call (exact).

    Attributes:
        grid: schedule; `2F0` is the forward of stage 2 for micro-batch 0, B its backward, and `0U0`
            the weight update of IPU 0. If a backward is divided, I computes the gradients that the
            stage before needs, and W those of weights.
        ipu_ids: the user's number of each virtual IPU.
        blocks: blocks of each stage; "" is the code before the first block. Empty if the schedule
            belongs to no model.
        phase_of_stage: the user's phase of each stage; `None` unless execution is phased.
        phases: numbers of the phases; `None` unless execution is phased.
        movements: bytes that each segment moves between streaming memory and its IPU.
        transfers: inputs and outputs that cross between host and IPU during compute.
        recomputes: for each stage, whether its backward recomputes activations.
        is_table: whether the schedule is one of `emulator.schedules`, in which IPUs only wait for
            the inputs of their actions.
        tiles: plan of the tiles' memory; `None` if the schedule belongs to no model.
        time: plan of a call's time, for the table of a model.
    """

    grid: Schedule
    ipu_ids: tuple[int, ...]
    blocks: tuple[tuple[str, ...], ...] = ()
    phase_of_stage: tuple[int, ...] | None = None
    phases: PhaseNumbers | None = None
    movements: tuple[Movement, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    recomputes: tuple[bool, ...] = ()
    is_table: bool = False
    tiles: TileMemory | None = None
    time: TimePlan | None = None

    @classmethod
    def of(
        cls,
        placed: PlacedGraph,
        grid: Schedule,
        config: CompileConfig,
        time: TimePlan | None = None,
    ) -> SchedulePlan:
        """Returns the actions of each IPU of a placed model."""
        places, is_phased = placed.partition.places, config.strategy.is_phased
        return cls(
            grid=grid,
            ipu_ids=placed.partition.ipu_ids,
            blocks=placed.partition.blocks_of_stages(placed.graph),
            phase_of_stage=tuple(place.phase for place in places) if is_phased else None,
            phases=phase_numbers(config.strategy, config.is_training) if is_phased else None,
            movements=placed.memory.movements,
            transfers=placed.transfers,
            recomputes=_recomputes(placed, grid, config),
            is_table=config.strategy.table is not None,
            tiles=placed.tiles,
            time=time,
        )

    @cached_property
    def bubble(self) -> float:
        """The share of the time that IPUs wait, until the last one is done (exact).

        A forward takes one unit of time, and each half of a backward takes one unit.
        """
        return self._run.bubble

    @cached_property
    def bubble_within(self) -> float:
        """The share that an IPU waits between its own first and last action (exact).

        Papers on zero bubbles count this share, because there an IPU need not wait for the updates
        of other IPUs.
        """
        return self._run.bubble_within

    @cached_property
    def bubble_by_cycles(self) -> float | None:
        """The same as `bubble`, by the cycles of the machine; `None` if unknown (modelled)."""
        if self.time is None:
            return None
        return free_run(self.grid, self.time.cycles_of).bubble

    @cached_property
    def _run(self) -> FreeRun:
        return free_run(self.grid)

    def __str__(self) -> str:
        """Returns the grid of IPUs and slots, the parts of the window, and a line for each stage.

        Segments that use streaming memory have a line each. A row of I/O shows overlapped
        transfers: `0I1` is input 0 of micro-batch 1, `0O1` an output; `+` marks transfers for the
        next window, `-` those of the window before. Columns that do not fit the terminal continue
        below. The middle of a long window is left out.
        """
        columns, rows = terminal_width(), self._rows()
        lines = [*fitted_table(rows, len(rows[0]), columns), *self._left_out(), ""]
        return "\n".join(
            [*lines, *(part for line in self._notes() for part in wrapped(line, columns))]
        )

    def _repr_html_(self) -> str:
        """Returns the grid for a notebook, coloured like its picture, with the lines below it."""
        shades = shades_of(self.grid)
        rows = "".join(
            f"<tr>{''.join(_html_cell(text, shades) for text in row)}</tr>"
            for row in self._rows()
            if any(row)
        )
        table = f'<div style="overflow-x:auto"><table>{rows}</table></div>'
        return table + html_lines([*self._left_out(), *filter(None, self._notes())])

    def plot(self, axes: Any = None) -> Any:
        """Draws the pipeline as in textbooks: a row for each IPU, numbers are micro-batches.

        Boxes have conventional lengths: forward and recompute 1, backward 2, update 1; the picture
        of `emulator.timeline` is to scale. A long window is drawn with its first and last slots. If
        an IPU has several stages, later ones are lighter.

        Args:
            axes: matplotlib axes to draw on; by default those of a new figure.

        Returns:
            the axes.

        Raises:
            ImportError: matplotlib is not installed; it is the extra `report`.
        """
        run = self._run if self.is_table else None
        return draw_schedule(self.grid, self.recomputes, self.ipu_ids, axes, run)

    def _rows(self) -> list[list[str]]:
        first, last = shown_slots(self.grid.num_slots)
        found = grid_rows(self.grid, self.transfers)
        if not last:
            return found
        return [
            [row[0], *(row[1 + slot] for slot in first), "...", *(row[1 + slot] for slot in last)]
            for row in found
        ]

    def _left_out(self) -> list[str]:
        first, last = shown_slots(self.grid.num_slots)
        if not last:
            return []
        return [f"Slots {first.stop} to {last.start - 1} are not shown; to_csv() has them all."]

    def _notes(self) -> list[str]:
        """Returns a line for each segment that uses streaming memory, and one for each stage."""
        depths = stash_depths(self.grid)
        lines = [*map(_movement_text, self.movements), ""] if self.movements else []
        for stage, ipu in enumerate(self.grid.ipu_of_stage):
            line = f"stage {stage}: IPU {self.ipu_ids[ipu]}"
            if self.blocks:
                line += f", blocks {' '.join(self.blocks[stage])}"
            if self.grid.is_training:
                line += f", stashes {depths[stage]}"
            lines.append(line + self._phase_text(stage))
        return [*lines, *self._table_notes()] if self.is_table else lines

    def _table_notes(self) -> list[str]:
        """Returns lines on the costs of a table: its bubble, and the memory of each IPU."""
        text = f"bubble: {self.bubble:.1%}"
        if self.bubble - self.bubble_within > 1e-9:
            text += f" ({self.bubble_within:.1%} where no IPU waits for another one's update)"
        lines = [f"{text}, if a forward and each half of a backward take equally long"]
        if self.bubble_by_cycles is not None:
            lines.append(f"bubble: {self.bubble_by_cycles:.1%}, by the cycles of the machine")
        for ipu in self.tiles.ipus if self.tiles is not None else ():
            assert self.tiles is not None, "its IPUs were taken"
            held, limit = self.tiles.largest_bytes(ipu), self.tiles.chip.tile_bytes
            lines.append(f"IPU {ipu.ipu}: {held / KIB:.0f} of {limit / KIB:.0f} KiB of a tile")
        return lines

    def to_csv(self) -> str:
        """Returns one line for each IPU and one cell for each slot."""
        return to_csv(self.grid)

    def to_pytorch_csv(self) -> str:
        """Returns the computations as the CSV that PyTorch's pipelining reads (exact).

        Pass the file to `_PipelineScheduleRuntime._load_csv(path, format="compute_only")`.
        """
        return "".join(",".join(row) + "\n" for row in pytorch_rows(self.grid))

    def _phase_text(self, stage: int) -> str:
        if self.phases is None or self.phase_of_stage is None:
            return ""
        phase = self.phase_of_stage[stage]
        text = f", phase {self.phases.forward[phase]}"
        return f"{text} and {self.phases.backward[phase]}" if self.phases.backward else text


def _movement_text(moved: Movement) -> str:
    loaded, stored = moved.loaded_bytes / 1024, moved.stored_bytes / 1024
    return (
        f"{moved.segment}: reads {loaded:.1f} KiB from streaming memory and writes {stored:.1f} "
        "KiB to it"
    )


def _html_cell(text: str, shades: Sequence[int]) -> str:
    """Returns a cell of the grid with each action on the colour of its kind.

    Args:
        text: text of the cell.
        shades: shade of each stage; later stages on an IPU are lighter.
    """
    found = next((_TERM_OF_LETTER[letter] for letter in text if letter in _TERM_OF_LETTER), None)
    is_action = found is not None and text[0].isdigit()
    if found is None or not is_action:
        return f"<td>{as_html(text)}</td>"
    actions = []
    for action in text.split("|"):
        letter = next((letter for letter in action if letter in _TERM_OF_LETTER), "F")
        stage = action.partition(letter)[0]
        is_of_stage = letter in "FRBIW" and stage.isdecimal()
        colour = shaded(_TERM_OF_LETTER[letter].colour, shades[int(stage)] if is_of_stage else 0)
        style = f"background:{colour};color:{ink_on(colour)};padding:1px 4px"
        actions.append(f'<span style="{style}">{as_html(action)}</span>')
    return f'<td style="white-space:nowrap">{"".join(actions)}</td>'


def _recomputes(placed: PlacedGraph, grid: Schedule, config: CompileConfig) -> tuple[bool, ...]:
    """Returns, for each stage, whether the machine's plan recomputes any of its activations."""
    if not config.is_training:
        return ()
    graph, stages, kinds = placed.graph, placed.partition, grid.kinds
    recomputed = recomputed_operations(graph, stages, recomputation_of(config, stages))
    segments = cut(graph, stages, config.is_training, recomputed, kinds).segments
    return tuple(
        any(map(_is_repeated, segments[own[0], stage].instructions))
        for stage, own in enumerate(kinds)
    )


def _is_repeated(instruction: Instruction) -> bool:
    """Returns whether an instruction of backward repeats a forward one; views do not count."""
    return instruction.record.phase is Phase.FORWARD and not traits_of(instruction.target).is_view
