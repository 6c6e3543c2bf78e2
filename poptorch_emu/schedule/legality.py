"""The independent checker of any schedule.

It knows what a training or inference window must do, and nothing of how the strategies lay one
out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from poptorch_emu.schedule.actions import Action, Kind
from poptorch_emu.schedule.csv_text import cell_text
from poptorch_emu.schedule.deadlock import blocked_actions
from poptorch_emu.schedule.schedule import Schedule, link_depths, links

# Where an action stands: slot, IPU, index in the slot.
_Position = tuple[int, int, int]


class ScheduleError(ValueError):
    """A schedule is illegal; the message says why and shows where."""

    def __init__(self, schedule: Schedule, ipu: int, problem: str) -> None:
        """Makes the message from `problem` and the rows, of which that of `ipu` is marked."""
        rows = [
            f"IPU {at}: {','.join(map(cell_text, row))}" for at, row in enumerate(schedule.rows)
        ]
        rows[ipu] += "  <-- ERROR HERE"
        super().__init__("\n".join([problem, *rows]))


def check(schedule: Schedule, max_stash: Sequence[int] | None = None) -> None:
    """Proves that `schedule` is legal.

    Every action happens once and on its IPU; what it needs was made in an earlier slot, or before
    it in the same slot of the same IPU; the last stage's forward and backward stand together; each
    IPU updates last; FIFOs of the depths that the slots ask for never deadlock.

    Args:
        schedule: what to check.
        max_stash: for each stage, how many micro-batches may be between its forward and backward.

    Raises:
        ScheduleError: the first rule found broken, with the row where it happens.
    """
    _check_each_action_once(schedule)
    positions = _positions(schedule)
    _check_dependencies(schedule, positions)
    if schedule.is_training:
        _check_last_stage(schedule, positions)
        _check_updates(schedule)
    if max_stash is not None:
        _check_stash(schedule, max_stash)
    _check_deadlock(schedule)


def _check_each_action_once(schedule: Schedule) -> None:
    home = _homes(schedule)
    seen: set[Action] = set()
    for ipu in range(schedule.num_ipus):
        for action in schedule.actions(ipu):
            if action not in home:
                raise ScheduleError(
                    schedule,
                    ipu,
                    f"IPU {ipu} runs {action}, which is no action of {schedule.num_stages} stages "
                    f"and {schedule.num_micro_batches} micro-batches with is_training="
                    f"{schedule.is_training}. Remove it.",
                )
            if home[action] != ipu:
                raise ScheduleError(
                    schedule,
                    ipu,
                    f"IPU {ipu} runs {action}, which belongs to IPU {home[action]}. Move it there.",
                )
            if action in seen:
                raise ScheduleError(
                    schedule, ipu, f"IPU {ipu} runs {action} twice. Every action happens once."
                )
            seen.add(action)
    for action in sorted(home.keys() - seen):
        ipu = home[action]
        raise ScheduleError(
            schedule, ipu, f"IPU {ipu} never runs {action}. Every action happens once."
        )


def _check_dependencies(schedule: Schedule, positions: dict[Action, _Position]) -> None:
    for producer, consumer in links(schedule.levels, schedule.is_training):
        for micro_batch in range(schedule.num_micro_batches):
            source = Action(*producer, micro_batch)
            action = Action(*consumer, micro_batch)
            if not _is_before(positions[source], positions[action]):
                raise ScheduleError(
                    schedule,
                    positions[action][1],
                    f"{action} in slot {positions[action][0]} needs {source}, which is in slot "
                    f"{positions[source][0]} of IPU {positions[source][1]}. It must come in an "
                    "earlier slot, or earlier in the same slot of the same IPU.",
                )


def _check_last_stage(schedule: Schedule, positions: dict[Action, _Position]) -> None:
    last = [s for s, level in enumerate(schedule.levels) if level == max(schedule.levels)]
    for stage, micro_batch in product(last, range(schedule.num_micro_batches)):
        slot, ipu, index = positions[Action(Kind.FORWARD, stage, micro_batch)]
        backward = Action(Kind.BACKWARD, stage, micro_batch)
        if positions[backward] != (slot, ipu, index + 1):
            raise ScheduleError(
                schedule,
                ipu,
                f"{backward} is in slot {positions[backward][0]}. The last stage's backward must "
                f"follow its forward in slot {slot} at once.",
            )


def _check_updates(schedule: Schedule) -> None:
    for ipu in range(schedule.num_ipus):
        last = schedule.actions(ipu)[-1]
        if last.kind is not Kind.UPDATE:
            raise ScheduleError(
                schedule,
                ipu,
                f"IPU {ipu} runs {last} after its update. The update must come after all else.",
            )


def _check_stash(schedule: Schedule, max_stash: Sequence[int]) -> None:
    for ipu in range(schedule.num_ipus):
        held = [0] * schedule.num_stages
        for action in schedule.actions(ipu):
            if action.kind is Kind.BACKWARD:
                held[action.stage] -= 1
            elif action.kind is Kind.FORWARD and schedule.is_training:
                held[action.stage] += 1
                if held[action.stage] > max_stash[action.stage]:
                    raise ScheduleError(
                        schedule,
                        ipu,
                        f"Stage {action.stage} holds {held[action.stage]} micro-batches after "
                        f"{action} but may stash {max_stash[action.stage]}. Run a backward first.",
                    )


def _check_deadlock(schedule: Schedule) -> None:
    blocked = blocked_actions(schedule, link_depths(schedule))
    if blocked:
        waits = ", ".join(f"IPU {ipu} before {action}" for ipu, action in blocked.items())
        raise ScheduleError(
            schedule,
            min(blocked),
            f"IPUs wait for ever: {waits}. The producer and the consumer of a link must go through "
            "the micro-batches in the same order.",
        )


def _homes(schedule: Schedule) -> dict[Action, int]:
    kinds = [Kind.FORWARD, Kind.BACKWARD] if schedule.is_training else [Kind.FORWARD]
    homes = {
        Action(kind, stage, micro_batch): ipu
        for kind in kinds
        for stage, ipu in enumerate(schedule.ipu_of_stage)
        for micro_batch in range(schedule.num_micro_batches)
    }
    if schedule.is_training:
        homes |= {Action(Kind.UPDATE, ipu, 0): ipu for ipu in range(schedule.num_ipus)}
    return homes


def _positions(schedule: Schedule) -> dict[Action, _Position]:
    return {
        action: (slot, ipu, index)
        for ipu, row in enumerate(schedule.rows)
        for slot, cell in enumerate(row)
        for index, action in enumerate(cell)
    }


def _is_before(first: _Position, second: _Position) -> bool:
    return first[0] < second[0] or (first[:2] == second[:2] and first[2] < second[2])
