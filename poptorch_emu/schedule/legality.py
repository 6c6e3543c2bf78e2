"""The independent checker of any schedule.

It knows the rules for a window of training or inference, but not how the strategies build one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from poptorch_emu.schedule.actions import Action, Kind
from poptorch_emu.schedule.csv_text import cell_text
from poptorch_emu.schedule.deadlock import blocked_actions
from poptorch_emu.schedule.schedule import Link, Port, Schedule, link_depths

# The place of an action: slot, IPU, index in the slot.
_Position = tuple[int, int, int]

# Number of slots that an error shows on each side of the faulty place.
_SLOTS_BESIDE = 6


class ScheduleError(ValueError):
    """A schedule is illegal. The message states the rule and marks the place in the grid."""

    def __init__(
        self, schedule: Schedule, ipu: int, problem: str, actions: Sequence[Action] = ()
    ) -> None:
        """Builds the message from `problem` and the grid.

        Args:
            schedule: illegal schedule.
            ipu: IPU whose row is marked.
            problem: text with the rule, the fault and the way out.
            actions: actions to mark.
        """
        super().__init__("\n".join([problem, *_grid(schedule, ipu, actions)]))


def _grid(schedule: Schedule, ipu: int, actions: Sequence[Action]) -> list[str]:
    """Returns a line for each IPU around the place of an error."""
    cells = [[_marked(cell, actions) for cell in row] for row in schedule.rows]
    place = next((slot for slot, text in enumerate(cells[ipu]) if ">" in text), 0)
    first, end = max(0, place - _SLOTS_BESIDE), place + _SLOTS_BESIDE + 1
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)][first:end]
    lines = []
    for at, row in enumerate(cells):
        shown = [text.ljust(width) for text, width in zip(row[first:end], widths, strict=True)]
        if first:
            shown.insert(0, "...")
        if end < schedule.num_slots:
            shown.append("...")
        mark = "  <-- ERROR HERE" if at == ipu else ""
        lines.append(f"IPU {at}: {' '.join(shown)}".rstrip() + mark)
    return lines


def _marked(cell: Sequence[Action], actions: Sequence[Action]) -> str:
    text = cell_text(tuple(cell)) or "."
    return f">{text}<" if any(action in actions for action in cell) else text


def check(
    schedule: Schedule,
    max_stash: Sequence[int] | None = None,
    depths: Mapping[Link, int] | None = None,
) -> None:
    """Proves that `schedule` is legal.

    Every action runs once and on its own IPU. Each result that it needs is computed in an earlier
    slot, or earlier in the same slot of the same IPU. The update is the last action of each IPU,
    and the links never deadlock.

    Args:
        schedule: schedule to check.
        max_stash: for each stage, the largest number of micro-batches between its forward and its
            last action for them.
        depths: capacity of links that hold fewer micro-batches than the slots ask for.

    Raises:
        ScheduleError: `schedule` breaks a rule. The message names the first one and marks its row.
    """
    check_each_action_once(schedule)
    _check_dependencies(schedule, _positions(schedule))
    if schedule.is_training:
        _check_updates(schedule)
    if max_stash is not None:
        _check_stash(schedule, max_stash)
    _check_deadlock(schedule, {**link_depths(schedule), **(depths or {})})


def check_each_action_once(schedule: Schedule) -> None:
    """Proves that each IPU runs each of its own actions once, and no others.

    Raises:
        ScheduleError: an action is missing, runs twice, or is on a wrong IPU.
    """
    missing = _all_ports(schedule)
    updates = {Action(Kind.UPDATE, ipu, 0) for ipu in range(schedule.num_ipus)}
    updates = updates if schedule.is_training else set()
    for ipu in range(schedule.num_ipus):
        for action in schedule.actions(ipu):
            _check_home(schedule, ipu, action)
            if action.kind is Kind.UPDATE:
                is_new = action in updates
                updates.discard(action)
            else:
                ports = {(port, action.micro_batch) for port in schedule.ports_of(action)}
                is_new = ports <= missing
                missing -= ports
            if not is_new:
                raise ScheduleError(
                    schedule,
                    ipu,
                    f"IPU {ipu} runs {action} twice. Every action happens once: leave one out.",
                    [action],
                )
    never = [Action(*port, micro_batch) for port, micro_batch in missing]
    for action in sorted([*never, *updates]):
        ipu = _home(schedule, action)
        raise ScheduleError(
            schedule,
            ipu,
            f"IPU {ipu} never runs {action}. Every action happens once: add it to its row.",
        )


def _check_home(schedule: Schedule, ipu: int, action: Action) -> None:
    """Checks that an action is one of the schedule, and on its IPU."""
    if not _is_known(schedule, action):
        raise ScheduleError(
            schedule,
            ipu,
            f"IPU {ipu} runs {action}, which is not an action of a schedule with "
            f"{schedule.num_stages} stages, {schedule.num_micro_batches} micro-batches and "
            f"is_training={schedule.is_training}. Remove it.",
            [action],
        )
    home = _home(schedule, action)
    if home != ipu:
        raise ScheduleError(
            schedule,
            ipu,
            f"IPU {ipu} runs {action}, which belongs to IPU {home}. Move it there.",
            [action],
        )


def _is_known(schedule: Schedule, action: Action) -> bool:
    if action.kind is Kind.UPDATE:
        is_one = action.stage < schedule.num_ipus and action.micro_batch == 0
        return schedule.is_training and is_one
    is_one = action.stage < schedule.num_stages
    is_one = is_one and action.micro_batch < schedule.num_micro_batches
    return is_one and (schedule.is_training or action.kind is Kind.FORWARD)


def _home(schedule: Schedule, action: Action) -> int:
    is_update = action.kind is Kind.UPDATE
    return action.stage if is_update else schedule.ipu_of_stage[action.stage]


def _all_ports(schedule: Schedule) -> set[tuple[Port, int]]:
    """Returns every pair of port and micro-batch that a window has to run."""
    return {
        ((kind, stage), micro_batch)
        for stage, kinds in enumerate(schedule.kinds)
        for kind in (Kind.FORWARD, *kinds)
        for micro_batch in range(schedule.num_micro_batches)
    }


def _check_dependencies(schedule: Schedule, positions: dict[Action, _Position]) -> None:
    for action in sorted(positions):
        for source in schedule.needs[action]:
            if not _is_before(positions[source], positions[action]):
                raise ScheduleError(
                    schedule,
                    positions[action][1],
                    f"{action} in slot {positions[action][0]} needs {source}, which is in slot "
                    f"{positions[source][0]} of IPU {positions[source][1]}. It must come in an "
                    "earlier slot, or earlier in the same slot of the same IPU.",
                    [action, source],
                )


def check_last_stage(schedule: Schedule) -> None:
    """Proves a rule of PopTorch's own pipelines: the last stage's backward follows its forward.

    Raises:
        ScheduleError: another action is between them.
    """
    positions = _positions(schedule)
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
                [backward],
            )


def _check_updates(schedule: Schedule) -> None:
    for ipu in range(schedule.num_ipus):
        last = schedule.actions(ipu)[-1]
        if last.kind is not Kind.UPDATE:
            raise ScheduleError(
                schedule,
                ipu,
                f"IPU {ipu} runs {last} after its update. The update must come after all else.",
                [last],
            )


def _check_stash(schedule: Schedule, max_stash: Sequence[int]) -> None:
    for ipu in range(schedule.num_ipus):
        held = [0] * schedule.num_stages
        for action in schedule.actions(ipu):
            if action.kind is Kind.UPDATE or not schedule.is_training:
                continue
            last = schedule.kinds[action.stage][-1], action.stage
            if last in schedule.ports_of(action):
                held[action.stage] -= 1
            elif action.kind is Kind.FORWARD:
                held[action.stage] += 1
                if held[action.stage] > max_stash[action.stage]:
                    raise ScheduleError(
                        schedule,
                        ipu,
                        f"Stage {action.stage} holds {held[action.stage]} micro-batches after "
                        f"{action} but may stash {max_stash[action.stage]}. Run a backward first.",
                        [action],
                    )


def _check_deadlock(schedule: Schedule, depths: Mapping[Link, int]) -> None:
    blocked = blocked_actions(schedule, depths)
    if blocked:
        waits = ", ".join(f"IPU {ipu} before {action}" for ipu, action in blocked.items())
        raise ScheduleError(
            schedule,
            min(blocked),
            f"IPUs wait for ever: {waits}. Each IPU waits for room in a link, or for a later "
            "action of another IPU. Let the links hold more, or change the order of a row.",
            list(blocked.values()),
        )


def check_order(schedule: Schedule, waiting: Mapping[int, tuple[Action, Action]]) -> None:
    """Refuses a schedule whose IPUs wait for each other.

    Args:
        schedule: schedule of all IPUs.
        waiting: for each IPU that waits, its blocked action and a missing action that it needs.

    Raises:
        ScheduleError: `waiting` is not empty.
    """
    if not waiting:
        return
    waits = ", ".join(
        f"IPU {ipu} before {action}, which needs {needed}"
        for ipu, (action, needed) in waiting.items()
    )
    raise ScheduleError(
        schedule,
        min(waiting),
        f"IPUs wait for ever: {waits}. An action that is needed comes after one that waits for "
        "it, in the same row or through other IPUs. Move the needed action to the front.",
        [action for pair in waiting.values() for action in pair],
    )


def _positions(schedule: Schedule) -> dict[Action, _Position]:
    return {
        action: (slot, ipu, index)
        for ipu, row in enumerate(schedule.rows)
        for slot, cell in enumerate(row)
        for index, action in enumerate(cell)
    }


def _is_before(first: _Position, second: _Position) -> bool:
    return first[0] < second[0] or (first[:2] == second[:2] and first[2] < second[2])
