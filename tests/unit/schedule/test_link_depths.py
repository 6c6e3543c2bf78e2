"""The value `Schedule` and the depths of its links (module `schedule`)."""

import pytest

from poptorch_emu.schedule.actions import Action, Kind
from poptorch_emu.schedule.grouped import grouped
from poptorch_emu.schedule.interleaved import interleaved
from poptorch_emu.schedule.schedule import Schedule, link_depth, link_depths, links
from poptorch_emu.schedule.sequential import sequential

F, B = Kind.FORWARD, Kind.BACKWARD


@pytest.mark.parametrize(
    ("ipu_of_stage", "num_micro_batches", "rows", "message"),
    [
        ((), 1, (), "at least one stage"),
        ((0, 2), 1, (((),), ((),)), r"IPUs \[0, 2\].*without a gap"),
        ((-1, 0), 1, (((),), ((),)), r"IPUs \[-1, 0\]"),
        ((0,), 0, (((),),), "num_micro_batches is 0"),
        ((0, 1), 1, (((),),), r"rows have \[1\] slots: expected 2 rows"),
        ((0, 1), 1, (((),), ((), ())), r"rows have \[1, 2\] slots"),
    ],
    ids=["no-stage", "gap", "negative", "no-micro-batch", "row-missing", "ragged"],
)
def test_schedule_when_not_a_table_raises(ipu_of_stage, num_micro_batches, rows, message):
    with pytest.raises(ValueError, match=message):
        Schedule(ipu_of_stage, num_micro_batches, False, rows)


def test_schedule_when_read_gives_its_counts_and_lists():
    schedule = Schedule((0, 0), 1, False, (((Action(F, 0, 0),), (), (Action(F, 1, 0),)),))
    assert (schedule.num_stages, schedule.num_ipus, schedule.num_slots) == (2, 1, 3)
    assert schedule.actions(0) == (Action(F, 0, 0), Action(F, 1, 0))
    assert schedule.slot_of == {Action(F, 0, 0): 0, Action(F, 1, 0): 2}


def test_links_when_training_join_neighbours_and_forward_to_backward():
    assert set(links((0, 1), is_training=True)) == {
        ((F, 0), (F, 1)),
        ((F, 0), (B, 0)),
        ((F, 1), (B, 1)),
        ((B, 1), (B, 0)),
    }
    assert links((0, 1), is_training=False) == (((F, 0), (F, 1)),)
    # Two stages side by side between two others.
    assert links((0, 1, 1, 2), is_training=False) == (
        ((F, 0), (F, 1)),
        ((F, 0), (F, 2)),
        ((F, 1), (F, 3)),
        ((F, 2), (F, 3)),
    )


# By hand from the grids: the slots between producer and consumer, divided by the slots from one
# micro-batch to the next, and one more where both ends work in the same slot.
@pytest.mark.parametrize(
    ("strategy", "producer", "consumer", "depth"),
    [
        (grouped, (F, 0), (F, 1), 2),
        (grouped, (F, 0), (F, 3), 4),
        (grouped, (F, 0), (B, 0), 7),
        (grouped, (F, 3), (B, 3), 1),
        (grouped, (B, 3), (B, 2), 2),
        (grouped, (F, 0), (B, 2), 5),
        (interleaved, (F, 0), (F, 1), 1),
        (interleaved, (F, 0), (B, 0), 4),
        (interleaved, (F, 3), (B, 3), 1),
        (interleaved, (B, 3), (B, 2), 2),
        (interleaved, (B, 1), (B, 0), 1),
        (sequential, (F, 0), (F, 1), 1),
        (sequential, (F, 0), (B, 0), 1),
    ],
)
def test_link_depth_when_four_stages_run_eight_micro_batches(strategy, producer, consumer, depth):
    assert link_depth(strategy((0, 1, 2, 3), 8, True), producer, consumer) == depth


@pytest.mark.parametrize(("num_micro_batches", "depth"), [(6, 6), (7, 7), (8, 7)])
def test_link_depth_when_there_are_few_micro_batches_is_their_number(num_micro_batches, depth):
    schedule = grouped((0, 1, 2, 3), num_micro_batches, True)
    assert link_depth(schedule, (F, 0), (B, 0)) == depth


def test_link_depths_when_inference_cover_the_forward_chain():
    assert link_depths(grouped((0, 1, 0), 5, False)) == {
        ((F, 0), (F, 1)): 2,
        ((F, 1), (F, 2)): 2,
    }
