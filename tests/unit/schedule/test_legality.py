import pytest

from poptorch_emu.schedule.actions import Kind, parse_action
from poptorch_emu.schedule.csv_text import from_csv
from poptorch_emu.schedule.deadlock import blocked_actions
from poptorch_emu.schedule.grouped import grouped
from poptorch_emu.schedule.legality import ScheduleError, check, check_last_stage
from poptorch_emu.schedule.schedule import Schedule, link_depths

LEGAL = """\
0F0,,0B0,0F1,,0B1,0U0
,1F0|1B0,,,1F1|1B1,,1U0
"""

# Two stages and two micro-batches in training; each grid breaks one rule.
ILLEGAL = {
    "missing": (
        """\
0F0,,0B0,0F1,,,0U0
,1F0|1B0,,,1F1|1B1,,1U0
""",
        0,
        "IPU 0 never runs 0B1",
    ),
    "twice": (
        """\
0F0,,0B0,0F1,,0B1,0U0
,1F0|1B0,,1F0,1F1|1B1,,1U0
""",
        1,
        "IPU 1 runs 1F0 twice",
    ),
    "unknown-stage": (
        """\
0F0,,0B0,0F1,,0B1,0U0
,1F0|1B0,2B0,,1F1|1B1,,1U0
""",
        1,
        "runs 2B0, which is not an action of a schedule with 2 stages, 2 micro-batches and "
        "is_training=True",
    ),
    "wrong-ipu": (
        """\
0F0,,0B0,0F1,,1B1,0U0
,1F0|1B0,,,1F1|1B1,,1U0
""",
        0,
        "IPU 0 runs 1B1, which belongs to IPU 1",
    ),
    "input-in-the-same-slot-of-another-ipu": (
        """\
0F0,,0B0,0F1,,0B1,0U0
1F0|1B0,,,,1F1|1B1,,1U0
""",
        1,
        "1F0 in slot 0 needs 0F0, which is in slot 0 of IPU 0",
    ),
    "input-later-in-the-same-cell": (
        """\
0F0,,0B0,0F1,,0B1,0U0
,1B0|1F0,,,1F1|1B1,,1U0
""",
        1,
        "1B0 in slot 1 needs 1F0, which is in slot 1 of IPU 1",
    ),
    "backward-before-forward": (
        """\
0B1,,0B0,0F0,,0F1,0U0
,1F0|1B0,,,1F1|1B1,,1U0
""",
        1,
        "1F0 in slot 1 needs 0F0, which is in slot 3 of IPU 0",
    ),
    "update-before-backward": (
        """\
0F0,,0B0,0F1,,0U0,0B1
,1F0|1B0,,,1F1|1B1,,1U0
""",
        0,
        "IPU 0 runs 0B1 after its update",
    ),
}


# The two micro-batches come back in reversed order.
OVERTAKING = """\
0F0,0F1,,0B1,0B0,0U0
,,1F1|1B1,1F0|1B0,,1U0
"""


def test_check_when_schedule_is_legal_says_nothing():
    check(from_csv(LEGAL))
    check_last_stage(from_csv(LEGAL))


def test_check_last_stage_when_its_actions_are_apart_raises():
    apart = "0F0,,,0B0,0F1,,0B1,0U0\n,1F0,1B0,,,1F1|1B1,,1U0\n"
    check(from_csv(apart))
    with pytest.raises(ScheduleError, match="1B0 is in slot 2. .* follow its forward in slot 1"):
        check_last_stage(from_csv(apart))


def test_check_when_micro_batches_overtake_needs_links_that_hold_them():
    schedule = from_csv(OVERTAKING)
    check(schedule)
    link = (Kind.FORWARD, 0), (Kind.FORWARD, 1)
    check(schedule, depths={link: 2})
    with pytest.raises(ScheduleError) as error:
        check(schedule, depths={link: 1})
    assert "IPUs wait for ever: IPU 0 before 0F1, IPU 1 before 1F1" in str(error.value)
    assert "Let the links hold more" in str(error.value)


def test_error_when_the_schedule_is_long_shows_what_is_around_the_place():
    rows = [list(row) for row in grouped((0, 1), 40, True).rows]
    rows[1][20], rows[1][21] = rows[1][21], rows[1][20]
    rows[0][22] = (*rows[0][22], rows[0][21][0])
    with pytest.raises(ScheduleError) as error:
        check(Schedule((0, 1), 40, True, tuple(map(tuple, rows))))
    problem, first, second = str(error.value).splitlines()
    assert problem == "IPU 0 runs 0F21 twice. Every action happens once: leave one out."
    assert first.startswith("IPU 0: ... ") and ">0F21|0B19<" in first
    assert first.endswith(" ...  <-- ERROR HERE") and second.endswith(" ...")
    assert len(first) < 200


@pytest.mark.parametrize("name", ILLEGAL)
def test_check_when_a_rule_is_broken_says_which_and_marks_the_row(name):
    text, ipu, message = ILLEGAL[name]
    with pytest.raises(ScheduleError) as error:
        check(from_csv(text))
    problem, *rows = str(error.value).splitlines()
    assert message in problem
    assert [line[:5] for line in rows if line.endswith("  <-- ERROR HERE")] == [f"IPU {ipu}"]
    assert len(rows) == 2


def test_check_when_inference_has_backward_actions_raises():
    training = from_csv(LEGAL)
    schedule = Schedule((0, 1), 2, False, training.rows)
    with pytest.raises(ScheduleError, match="0B0, which is not an action of .* is_training=False"):
        check(schedule)


def test_check_when_stash_is_at_and_over_its_bound():
    schedule = grouped((0, 1, 2), 8, True)
    check(schedule, max_stash=(5, 3, 1))
    with pytest.raises(ScheduleError, match="Stage 1 holds 3 micro-batches after 1F2 .* stash 2"):
        check(schedule, max_stash=(5, 2, 1))


def test_blocked_actions_when_a_stash_is_one_too_small_names_the_waiting_actions():
    schedule = grouped((0, 1, 2), 8, True)
    depths = link_depths(schedule)
    assert blocked_actions(schedule, depths) == {}

    depths[(Kind.FORWARD, 0), (Kind.BACKWARD, 0)] -= 1
    assert blocked_actions(schedule, depths)[0] == parse_action("0F4")


def test_blocked_actions_when_neighbours_have_one_place_each_still_finish():
    schedule = grouped((0, 1, 2), 8, True)
    depths = link_depths(schedule)
    depths[(Kind.FORWARD, 0), (Kind.FORWARD, 1)] = 1
    assert blocked_actions(schedule, depths) == {}
