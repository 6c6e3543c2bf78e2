import pytest

from poptorch_emu.report.schedule_grid import slot_parts, to_grid
from poptorch_emu.schedule.grouped import grouped
from poptorch_emu.schedule.schedule import Schedule


def test_to_grid_when_training_has_slots_parts_and_a_row_for_each_ipu():
    assert to_grid(grouped((0, 1), 3, True)) == (
        "slot   0     1        2        3        4      5\n"
        "       fill  fill     main     flush    flush  update\n"
        "IPU 0  0F0   0F1      0F2|0B0  0B1      0B2    0U0\n"
        "IPU 1        1F0|1B0  1F1|1B1  1F2|1B2         1U0"
    )


@pytest.mark.parametrize(("num_micro_batches", "num_main"), [(3, 0), (4, 0), (5, 1), (8, 4)])
def test_slot_parts_when_grouped_fill_and_flush_for_twice_the_stages_but_two(
    num_micro_batches, num_main
):
    parts = slot_parts(grouped((0, 1, 2), num_micro_batches, True))
    assert parts.count("main") == num_main
    assert parts.count("update") == 1
    assert parts.count("flush") == 4
    assert parts.count("fill") == min(num_micro_batches, 4)


def test_slot_parts_when_inference_fill_and_flush_for_the_stages_but_one():
    parts = slot_parts(grouped((0, 1, 2), 5, False))
    assert parts == ("fill",) * 2 + ("main",) * 3 + ("flush",) * 2


def test_to_grid_when_schedule_is_empty_still_prints():
    assert to_grid(Schedule((0,), 1, True, (((),),))) == "slot   0\n       fill\nIPU 0"
