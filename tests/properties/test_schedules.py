"""Invariants of every schedule, on random maps from stages to IPUs."""

from hypothesis import given
from hypothesis import strategies as st

from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.csv_text import from_csv, to_csv
from poptorch_emu.schedule.legality import check, check_last_stage
from poptorch_emu.schedule.make import ScheduleKind, make_schedule
from poptorch_emu.schedule.schedule import link_depth, link_depths
from poptorch_emu.schedule.stash import stash_depths, stash_slots


@st.composite
def stage_maps(draw):
    """Draws maps of one to six stages to IPUs numbered without gaps, with revisits."""
    ids = draw(st.lists(st.integers(0, 5), min_size=1, max_size=6))
    dense = sorted(set(ids))
    return tuple(dense.index(ipu) for ipu in ids)


PHASED = (ScheduleKind.SERIAL_PHASED, ScheduleKind.PARALLEL_PHASED)


@st.composite
def schedules_of_all_kinds(draw):
    kind, ipu_of_stage = draw(st.sampled_from(ScheduleKind)), draw(stage_maps())
    levels = ()
    if kind in PHASED and draw(st.booleans()):
        levels = (0,)
        for stage, ipu in enumerate(ipu_of_stage[1:], start=1):
            beside = ipu_of_stage[levels.index(levels[-1]) : stage]
            levels += (levels[-1] + (ipu in beside or draw(st.booleans())),)
    return make_schedule(kind, ipu_of_stage, draw(st.integers(1, 12)), draw(st.booleans()), levels)


schedules = schedules_of_all_kinds()


@given(schedules)
def test_schedule_when_made_is_legal(schedule):
    check(schedule)
    if schedule.is_training:
        check_last_stage(schedule)


@given(schedules)
def test_schedule_when_written_as_csv_parses_back(schedule):
    assert from_csv("# header\n" + to_csv(schedule)) == schedule


@given(stage_maps(), st.integers(1, 12))
def test_stash_when_pipelined_stays_in_its_published_bound(ipu_of_stage, num_micro_batches):
    num_stages = len(ipu_of_stage)
    bounds = {
        ScheduleKind.GROUPED: [stash_slots(stage, num_stages) for stage in range(num_stages)],
        ScheduleKind.INTERLEAVED: [num_stages + 1] * num_stages,
        ScheduleKind.SEQUENTIAL: [1] * num_stages,
    }
    for kind, bound in bounds.items():
        schedule = make_schedule(kind, ipu_of_stage, num_micro_batches, True)
        check(schedule, max_stash=bound)
        assert all(map(int.__le__, stash_depths(schedule), bound))


@given(schedules, st.data())
def test_link_depth_when_slots_are_played_is_the_most_in_flight(schedule, data):
    # Any pair of stages may have a link, for example a connection that skips stages.
    stages = st.integers(0, schedule.num_stages - 1)
    first, second = sorted([data.draw(stages), data.draw(stages)])
    producer, consumer = (Kind.FORWARD, first), (Kind.FORWARD, second)
    if schedule.is_training and data.draw(st.booleans()):
        consumer = (Kind.BACKWARD, first)

    in_flight = most = 0
    for slot in range(schedule.num_slots):
        ports = [(a.kind, a.stage) for row in schedule.rows for a in row[slot]]
        in_flight += ports.count(producer)
        most = max(most, in_flight)
        in_flight -= ports.count(consumer)
    assert link_depth(schedule, producer, consumer) == most


@given(schedules, st.randoms(use_true_random=False))
def test_windows_when_run_as_processes_never_deadlock(schedule, random):
    """Runs two windows back to back; IPUs act in random order, without regard to slots."""
    depths = link_depths(schedule)
    fifos = {link: [] for link in depths}
    lists = [list(schedule.actions(ipu)) * 2 for ipu in range(schedule.num_ipus)]

    def is_ready(action):
        port = (action.kind, action.stage)
        return all(
            (link[1] != port or fifo) and (link[0] != port or len(fifo) < depths[link])
            for link, fifo in fifos.items()
        )

    while any(lists):
        ready = [actions for actions in lists if actions and is_ready(actions[0])]
        assert ready, "deadlock"
        action = random.choice(ready).pop(0)
        for link, fifo in fifos.items():
            if link[1] == (action.kind, action.stage):
                assert fifo.pop(0) == action.micro_batch
            if link[0] == (action.kind, action.stage):
                fifo.append(action.micro_batch)
    assert not any(fifos.values())
