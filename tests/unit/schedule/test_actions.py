import pytest

from poptorch_emu.schedule.actions import Action, Kind, parse_action


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (Action(Kind.FORWARD, 2, 0), "2F0"),
        (Action(Kind.BACKWARD, 0, 17), "0B17"),
        (Action(Kind.UPDATE, 10, 0), "10U0"),
    ],
    ids=["forward", "backward", "update"],
)
def test_action_when_written_and_parsed_is_the_same(action, text):
    assert str(action) == text
    assert parse_action(text) == action


@pytest.mark.parametrize("text", ["", "2F", "F0", "2X0", "2f0", " 2F0", "2F0\n", "-1F0", "02F0"])
def test_parse_action_when_text_is_no_action_names_it(text):
    with pytest.raises(ValueError, match="is not an action") as error:
        parse_action(text)
    assert repr(text) in str(error.value)


def test_actions_when_sorted_go_by_kind_then_stage_then_micro_batch():
    texts = ["0F0", "0F1", "1F0", "0B0", "3B2", "0U0"]
    assert [str(action) for action in sorted(map(parse_action, reversed(texts)))] == texts
