"""Each id in a message has a section in docs/troubleshooting.md, and each section has an id."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.mistakes import MISTAKES, Place

from poptorch_emu import __main__
from poptorch_emu.troubleshooting import Topic, before_hint, explanation, linked, topic_of

ROOT = Path(__file__).parents[2]
IDS = {topic.value for topic in Topic}
SECTION = re.compile(r"^## ([a-z0-9-]+)$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
NAMED_IN_CPP = re.compile(r"see troubleshooting: ([a-z0-9-]+)")


def sections() -> list[tuple[str, str]]:
    """Returns id and text of each section of the page."""
    return SECTION.findall((ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8"))


def ids_that_messages_name() -> set[str]:
    """Returns the ids that the code puts into messages, in Python and in C++."""
    python = [
        path.read_text(encoding="utf-8")
        for path in (ROOT / "poptorch_emu").rglob("*.py")
        # The runner's rules explain messages; they do not make them.
        if path.name not in ("troubleshooting.py", "failure.py")
    ]
    cpp = [path.read_text(encoding="utf-8") for path in (ROOT / "csrc").rglob("*.cpp")]
    members = {name for text in python for name in re.findall(r"\bTopic\.([A-Z0-9_]+)", text)}
    return {Topic[name].value for name in members} | {
        name for text in cpp for name in NAMED_IN_CPP.findall(text)
    }


@pytest.mark.parametrize("name", sorted(MISTAKES))
def test_mistake_then_its_message_names_the_section(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    said = []
    try:
        MISTAKES[name](Place(tmp_path, monkeypatch))
    except Exception as error:
        said.append(str(error))
    said += [record.getMessage() for record in caplog.records]
    assert re.search(rf"see troubleshooting: {name}(?![a-z0-9-])", "\n".join(said)), said


def test_page_then_has_one_section_for_each_id_and_no_other() -> None:
    names = [name for name, _ in sections()]
    assert len(names) == len(set(names))
    assert set(names) == IDS


def test_ids_then_each_is_named_by_a_message_and_provoked() -> None:
    assert ids_that_messages_name() == IDS
    assert set(MISTAKES) == IDS


@pytest.mark.parametrize(("name", "text"), sections(), ids=lambda value: value.split("\n")[0])
def test_section_then_says_what_it_means_what_to_do_and_shows_it(name: str, text: str) -> None:
    for part in ("**It says**", "**Why**", "**Do**", "```"):
        assert part in text, f"{name} lacks {part}"


def test_sentence_that_is_added_then_the_hint_stays_at_the_end() -> None:
    message = f"It moved; {Topic.MOVED_TO_CPU}"
    assert before_hint(message, "It stays.") == f"It moved. It stays; {Topic.MOVED_TO_CPU}"
    assert before_hint("It moved.", "It stays.") == "It moved. It stays."


def test_topic_of_message_then_it_is_the_one_named() -> None:
    assert topic_of(f"It moved; {Topic.MOVED_TO_CPU}") is Topic.MOVED_TO_CPU
    assert topic_of("It moved.") is None
    assert topic_of("It moved; see troubleshooting: unheard-of") is None


@pytest.mark.parametrize("name", sorted(IDS))
def test_explanation_then_is_the_section_without_markup(name: str) -> None:
    (text,) = [text for found, text in sections() if found == name]
    shown = explanation(name)
    assert shown.splitlines()[0] == name
    assert "```" not in shown and "](" not in shown and "\n## " not in shown
    for words in ("It says", "Why:", "Do:"):
        assert f"\n{words}" in shown
    for code in re.findall(r"^```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for line in filter(None, code.splitlines()):
            assert f"\n    {line}" in shown


@pytest.mark.parametrize(
    "asked",
    ["no-loss", "see troubleshooting: no-loss", "Couldn't find ...; see troubleshooting: no-loss."],
)
def test_explanation_then_a_message_will_do(asked: str) -> None:
    assert explanation(asked).startswith("no-loss\n")


def test_explanation_of_an_unknown_id_then_the_nearest_one() -> None:
    with pytest.raises(LookupError, match="Did you mean 'batch-size'"):
        explanation("batchsize")


def test_explain_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    __main__.main(["--explain", "no-block"])
    assert "It says" in capsys.readouterr().out
    for wrong in ("nothing", ""):
        with pytest.raises(SystemExit):
            __main__.main(["--explain", wrong])
        assert "there is no section" in capsys.readouterr().err


def test_hint_in_a_terminal_then_is_a_link_to_the_section() -> None:
    message = f"Something is wrong; {Topic.NO_LOSS}"
    found = re.search(r"\x1b\]8;;(file://.*)#no-loss\x1b\\(.*?)\x1b\]8;;\x1b\\", linked(message))
    assert found is not None and found[2] == "see troubleshooting: no-loss"
    assert Path(found[1].removeprefix("file://")).name == "troubleshooting.md"
    assert linked("Nothing is wrong.") == "Nothing is wrong."
