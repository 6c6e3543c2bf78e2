"""Compares the duration of a window with formulas (hardware.md 4.1) and a simulation."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.time_plans import made_of

from poptorch_emu.plan.time.timeline import timeline
from poptorch_emu.schedule.actions import Kind, parse_action
from poptorch_emu.schedule.make import ScheduleKind, make_schedule
from poptorch_emu.schedule.schedule import link_depths, links

FORMULAS = {
    # Cycles for N equal stages, M micro-batches, forward f, backward b and update u.
    (ScheduleKind.GROUPED, True): lambda n, m, f, b, u: (m + 2 * n - 2) * (f + b) + u,
    (ScheduleKind.INTERLEAVED, True): lambda n, m, f, b, u: (2 * m + 2 * n - 2) * max(f, b) + u,
    (ScheduleKind.SEQUENTIAL, True): lambda n, m, f, b, u: m * n * (f + b) + u,
    (ScheduleKind.SHARDED, True): lambda n, m, f, b, u: m * n * (f + b) + u,
    (ScheduleKind.SERIAL_PHASED, True): lambda n, m, f, b, u: m * n * (f + b) + u,
    (ScheduleKind.GROUPED, False): lambda n, m, f, b, u: (m + n - 1) * f,
    (ScheduleKind.SHARDED, False): lambda n, m, f, b, u: m * n * f,
}


@pytest.mark.parametrize(("kind", "is_training"), FORMULAS, ids=str)
@pytest.mark.parametrize(("n", "m"), [(2, 3), (4, 7), (4, 2048)])
def test_window_when_stages_are_equal_then_is_the_formula(kind, is_training, n, m) -> None:
    forward, backward = [2.0] * n, [5.0] * n if is_training else ()
    plan = made_of(kind, range(n), m, forward, backward, 7.0 if is_training else 0.0)
    assert plan.step_seconds == FORMULAS[kind, is_training](n, m, 2.0, 5.0, 7.0)


@pytest.mark.parametrize("kind", [ScheduleKind.GROUPED, ScheduleKind.INTERLEAVED])
def test_window_when_there_is_one_stage_then_has_no_ramp(kind) -> None:
    assert made_of(kind, [0], 5, [2.0], [4.0], 1.0).step_seconds == 5 * 6.0 + 1.0


def test_window_when_an_ipu_has_two_stages_then_their_times_add_up() -> None:
    plan = made_of(ScheduleKind.GROUPED, (0, 1, 0), 8, [1.0, 3.0, 1.0], [2.0, 4.0, 2.5])
    assert plan.grid.slot_cycles == 7.0  # IPU 1 needs 7.0, IPU 0 needs 6.5.
    assert plan.step_seconds == (8 + 4) * 7.0


def test_ramp_then_is_a_smaller_share_of_more_micro_batches() -> None:
    shares = [
        made_of(ScheduleKind.GROUPED, range(4), m, [1.0] * 4, [2.0] * 4).ipus[0].bubble_seconds
        / ((m + 6) * 3.0)
        for m in (8, 16, 32, 64)
    ]
    assert shares == pytest.approx([6 / 14, 6 / 22, 6 / 38, 6 / 70])


def simulated(kind, ipu_of_stage, num_micro_batches, forward, backward, slot_cycles):
    """Returns begin and end of each action on IPUs that wait for slots, inputs and full links."""
    schedule = make_schedule(kind, tuple(ipu_of_stage), num_micro_batches, bool(backward))
    depths = link_depths(schedule)
    queues = {link: deque() for link in links(schedule.levels, schedule.is_training)}
    table = {Kind.FORWARD: forward, Kind.BACKWARD: backward}
    free = [0.0] * schedule.num_ipus
    slot_begin, found = 0.0, {}
    for slot in range(schedule.num_slots):
        pending = [
            deque((ipu, action) for action in row[slot] if action.kind is not Kind.UPDATE)
            for ipu, row in enumerate(schedule.rows)
        ]
        while any(pending):
            progressed = False
            for queue in pending:
                if not queue:
                    continue
                ipu, action = queue[0]
                port = (action.kind, action.stage)
                incoming = [link for link in queues if link[1] == port]
                outgoing = [link for link in queues if link[0] == port]
                if not all(queues[link] for link in incoming):
                    continue
                if any(len(queues[link]) >= depths[link] for link in outgoing):
                    continue
                ready = max([slot_begin, free[ipu], *(queues[link][0] for link in incoming)])
                end = ready + table[action.kind][action.stage]
                for link in incoming:
                    queues[link].popleft()
                for link in outgoing:
                    queues[link].append(end)
                found[action], free[ipu] = (ready, end), end
                queue.popleft()
                progressed = True
            assert progressed, "the links are full for good"
        slot_begin = slot_begin + slot_cycles if slot_cycles else max(free)
    return found


KINDS = [ScheduleKind.GROUPED, ScheduleKind.INTERLEAVED, ScheduleKind.SEQUENTIAL]


@settings(max_examples=60)
@given(
    kind=st.sampled_from(KINDS),
    stages=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5),
    num_micro_batches=st.integers(1, 9),
    head_is_back=st.booleans(),
)
def test_timeline_then_is_what_a_simulation_with_full_links_finds(
    kind, stages, num_micro_batches, head_is_back
) -> None:
    ipu_of_stage = list(range(len(stages)))
    if head_is_back and len(stages) > 2:
        ipu_of_stage[-1] = 0
    forward, backward = ([float(pair[i]) for pair in stages] for i in range(2))
    plan = made_of(kind, ipu_of_stage, num_micro_batches, forward, backward, 3.0)
    expected = simulated(
        kind, ipu_of_stage, num_micro_batches, forward, backward, plan.grid.slot_cycles
    )
    events = [event for event in timeline(plan) if event.kind != "optimizer"]
    assert {parse_action(e.action): (e.begin_seconds, e.end_seconds) for e in events} == expected
    updates = [event for event in timeline(plan) if event.kind == "optimizer"]
    assert [event.end_seconds for event in updates] == [plan.step_seconds] * len(plan.ipus)
    for ipu in plan.ipus:
        assert sum(ipu.seconds.values()) == pytest.approx(plan.step_seconds)


@pytest.mark.parametrize("kind", [*KINDS, ScheduleKind.SHARDED])
def test_timeline_when_the_window_is_long_then_only_its_middle_is_left_out(kind) -> None:
    forward, backward = [1.0, 2.0, 3.0], [3.0, 4.0, 2.0]
    plan = made_of(kind, range(3), 1000, forward, backward, 5.0)
    events = timeline(plan)
    assert len(events) < 200
    whole = simulated(kind, range(3), 1000, forward, backward, plan.grid.slot_cycles)
    for event in events:
        if event.kind != "optimizer":
            begin, end = whole[parse_action(event.action)]
            assert (event.begin_seconds, event.end_seconds) == pytest.approx((begin, end))
    assert {event.micro_batch for event in events} >= {0, 1, 998, 999}
