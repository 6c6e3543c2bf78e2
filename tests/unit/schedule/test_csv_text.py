import pytest

from poptorch_emu.schedule.csv_text import from_csv, to_csv
from poptorch_emu.schedule.grouped import grouped


def test_from_csv_when_read_finds_stages_micro_batches_and_mode():
    schedule = from_csv("# a comment, with commas\n0F0,,2F0,0F1,,2F1\n,1F0,,,1F1,\n")
    assert schedule.ipu_of_stage == (0, 1, 0)
    assert schedule.num_micro_batches == 2
    assert not schedule.is_training
    assert [[len(cell) for cell in row] for row in schedule.rows] == [
        [1, 0, 1, 1, 0, 1],
        [0, 1, 0, 0, 1, 0],
    ]


def test_to_csv_when_a_slot_has_several_actions_joins_them():
    assert to_csv(grouped((0, 1), 1, True)) == "0F0,,0B0,0U0\n,1F0|1B0,,1U0\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0X0\n", "'0X0' is not an action"),
        ("0F0,0F1\n,1F0\n0F2,\n", "Stage 0 has forwards on IPU 0 and on IPU 2"),
        ("0F0,2F0\n", r"Stages \[1\] have no forward"),
        ("0F0\n,1F0\n", r"rows have \[1, 2\] slots"),
        ("", "at least one stage"),
    ],
    ids=["action", "two-ipus", "stage-missing", "ragged", "empty"],
)
def test_from_csv_when_text_is_no_schedule_raises(text, message):
    with pytest.raises(ValueError, match=message):
        from_csv(text)
