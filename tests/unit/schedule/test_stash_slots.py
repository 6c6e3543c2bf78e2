import pytest

from poptorch_emu.schedule.grouped import grouped
from poptorch_emu.schedule.interleaved import interleaved
from poptorch_emu.schedule.sequential import sequential
from poptorch_emu.schedule.stash import stash_depths, stash_slots


@pytest.mark.parametrize("num_stages", range(1, 7))
def test_stash_slots_when_counted_from_one_is_the_published_formula(num_stages):
    published = [2 * (num_stages - s) + 1 for s in range(1, num_stages + 1)]
    assert [stash_slots(stage, num_stages) for stage in range(num_stages)] == published


@pytest.mark.parametrize("num_stages", range(1, 7))
def test_stash_depths_when_grouped_has_a_main_part_equal_stash_slots(num_stages):
    fewest = 2 * num_stages - 1
    expected = tuple(stash_slots(stage, num_stages) for stage in range(num_stages))
    for num_micro_batches in (fewest, fewest + 5):
        schedule = grouped(tuple(range(num_stages)), num_micro_batches, True)
        assert stash_depths(schedule) == expected
    if num_stages > 1:
        assert stash_depths(grouped(tuple(range(num_stages)), fewest - 1, True)) != expected


@pytest.mark.parametrize("num_stages", range(1, 7))
def test_stash_depths_when_interleaved_are_the_best_case_within_the_published_bound(num_stages):
    depths = stash_depths(interleaved(tuple(range(num_stages)), 20, True))
    assert depths == tuple(num_stages - stage for stage in range(num_stages))
    assert max(depths) <= num_stages + 1


def test_stash_depths_when_sequential_are_one():
    assert stash_depths(sequential((0, 1, 2), 5, True)) == (1, 1, 1)


def test_stash_depths_when_inference_are_zero():
    assert stash_depths(grouped((0, 1, 2), 5, False)) == (0, 0, 0)


@pytest.mark.parametrize("stage", [-1, 3])
def test_stash_slots_when_stage_is_out_of_range_raises(stage):
    with pytest.raises(ValueError, match=rf"stage is {stage}: .*below 3"):
        stash_slots(stage, 3)
