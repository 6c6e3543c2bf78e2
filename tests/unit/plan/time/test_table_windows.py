"""Duration of a window with a table: the longest path, and the events on it."""

from __future__ import annotations

from collections import defaultdict
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.random_tables import Rows, legal_tables
from support.time_plans import made_of

from poptorch_emu.config import TableConfig
from poptorch_emu.plan.time.timeline import timeline
from poptorch_emu.schedule.actions import Action, Kind, parse_action
from poptorch_emu.schedule.schedule import Schedule
from poptorch_emu.schedule.tables.named import make_table
from poptorch_emu.schedule.tables.own import read_table

F, B, W = Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_WEIGHTS
cycles = st.lists(st.integers(1, 9), min_size=5, max_size=5)


def longest_paths(schedule: Schedule, forward, backward, weights) -> dict[str, tuple[int, int]]:
    """Returns begin and end of each action, computed recursively from the actions it needs."""
    before: dict[Action, Action] = {}
    actions = [
        [a for a in schedule.actions(ipu) if a.kind is not Kind.UPDATE]
        for ipu in range(schedule.num_ipus)
    ]
    for row in actions:
        before |= dict(zip(row[1:], row, strict=False))
    cut = {a.stage for row in actions for a in row if a.kind is W}
    at = {(a.kind, a.stage, a.micro_batch): a for row in actions for a in row}

    def gives_gradients(stage: int, m: int) -> Action | None:
        whole = at.get((B, stage, m))
        return whole or at.get((Kind.BACKWARD_INPUTS, stage, m))

    def needs(action: Action):
        kind, stage, m = action.kind, action.stage, action.micro_batch
        if kind is F:
            yield at.get((F, stage - 1, m))
        elif kind is W:
            yield at[F, stage, m]
            yield gives_gradients(stage, m)
        else:
            yield at[F, stage, m]
            yield gives_gradients(stage + 1, m)
        yield before.get(action)

    @cache
    def end(action: Action) -> int:
        begin = max((end(one) for one in needs(action) if one is not None), default=0)
        length = {F: forward, W: weights}.get(action.kind, backward)[action.stage]
        if action.kind is B and action.stage in cut:
            length += weights[action.stage]
        begins[str(action)] = begin
        return begin + length

    begins: dict[str, int] = {}
    ends = {str(action): end(action) for row in actions for action in row}
    return {name: (begins[name], ends[name]) for name in ends}


@given(legal_tables(), cycles, cycles, cycles)
def test_window_and_events_then_are_the_longest_paths(
    rows: Rows, forward: list[int], backward: list[int], weights: list[int]
) -> None:
    schedule = read_table(rows)
    count = schedule.num_micro_batches
    plan = made_of(
        None, schedule.ipu_of_stage, count, forward, backward, 3.0, 1.0, weights, schedule
    )
    expected = longest_paths(schedule, forward, backward, weights)
    assert plan.step_seconds == 3.0 + max(end for _, end in expected.values())
    found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for event in timeline(plan):
        if parse_action(event.action).kind is not Kind.UPDATE:
            found[event.action].append((event.begin_seconds, event.end_seconds))
    spans = {name: (min(ev)[0], max(ev, key=lambda e: e[1])[1]) for name, ev in found.items()}
    assert spans == expected


def test_window_when_costs_are_equal_then_has_the_bubble_of_the_formula() -> None:
    p, m = 4, 12
    for name, per_ipu, end in (
        ("gpipe", 1, 3 * (m + p - 1)),
        ("interleaved_1f1b", 2, 3 * (m + (p - 1) / 2)),
        ("zero_bubble_h1", 1, 3 * m + p - 1),
    ):
        n = p * per_ipu
        table = make_table(TableConfig(name, per_ipu), n, m, True)
        one = [1 / per_ipu] * n
        is_cut = name == "zero_bubble_h1"
        backward = one if is_cut else [2 * length for length in one]
        plan = made_of(None, table.ipu_of_stage, m, one, backward, 0.0, 1.0, one, table)
        assert plan.step_seconds == pytest.approx(end)
        window = plan.grid

        def length(port, plan=plan):
            return plan.stages[port[1]].of(port[0]).cycles

        assert window.bubble(length) == pytest.approx(1 - 3 * m / end)
        assert window.period(length) <= end / m


def test_timeline_when_a_table_is_long_then_leaves_out_the_micro_batches_in_the_middle() -> None:
    table = make_table(TableConfig("zero_bubble_h1"), 4, 200, True)
    ones = [1.0] * 4
    plan = made_of(None, range(4), 200, ones, ones, 1.0, 1.0, ones, table)
    events = timeline(plan)
    shown = {e.micro_batch for e in events}
    assert shown == {*range(16), *range(184, 200)}
    assert max(event.end_seconds for event in events) == plan.step_seconds
