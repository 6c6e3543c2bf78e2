"""Schedules of joined micro-batches are legal and contain each action once."""

from __future__ import annotations

import pytest

from poptorch_emu.config import TableConfig
from poptorch_emu.schedule.actions import Action, Kind
from poptorch_emu.schedule.deadlock import blocked_actions
from poptorch_emu.schedule.joined import joined_schedule
from poptorch_emu.schedule.legality import check
from poptorch_emu.schedule.make import ScheduleKind, make_schedule
from poptorch_emu.schedule.schedule import link_depths
from poptorch_emu.schedule.tables.named import TABLES, make_table

CHAINS = [kind for kind in ScheduleKind if kind is not ScheduleKind.PARALLEL_PHASED]


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3, 6, 12])
@pytest.mark.parametrize("kind", CHAINS)
def test_schedule_when_micro_batches_are_joined_then_is_legal(kind, count, is_training) -> None:
    levels = (0, 1, 2) if kind is ScheduleKind.SERIAL_PHASED else ()
    single = make_schedule(kind, (0, 1, 2), 12, is_training, levels)
    joined = joined_schedule(single, count)
    check(joined)
    assert joined.num_micro_batches == 12 // count
    kinds = [Kind.FORWARD, Kind.BACKWARD] if is_training else [Kind.FORWARD]
    expected = {Action(kind, s, m) for kind in kinds for s in range(3) for m in range(12 // count)}
    updates = {Action(Kind.UPDATE, ipu, 0) for ipu in range(3)} if is_training else set()
    actions = [action for ipu in range(3) for action in joined.actions(ipu)]
    assert sorted(actions) == sorted(expected | updates)


def test_action_when_joined_then_stands_where_its_last_micro_batch_was() -> None:
    single = make_schedule(ScheduleKind.GROUPED, (0, 1), 4, True, ())
    joined = joined_schedule(single, 2)
    for action, slot in joined.slot_of.items():
        last = action.micro_batch * 2 + 1 if action.kind is not Kind.UPDATE else 0
        assert single.slot_of[Action(action.kind, action.stage, last)] == slot


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", TABLES)
def test_table_when_micro_batches_are_joined_then_each_action_has_what_it_needs(
    name, count
) -> None:
    table = TableConfig(name, TABLES[name].stages_per_ipu or 2)
    num_stages = 2 * table.stages_per_ipu
    single = make_table(table, num_stages, 8, True)
    joined = joined_schedule(single, count)
    assert blocked_actions(joined, link_depths(joined)) == {}
    runs = [
        run for actions in map(joined.actions, range(2)) for a in actions for run in joined.turns(a)
    ]
    ports = {(kind, s) for s in range(num_stages) for kind in (Kind.FORWARD, *joined.kinds[s])}
    assert sorted(runs) == sorted((port, n) for port in ports for n in range(8 // count))
