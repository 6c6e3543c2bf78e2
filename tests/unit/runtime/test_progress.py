"""Progress bars appear on terminals only; files and logs get plain lines."""

import io
import sys

import pytest

from poptorch_emu.log import logger
from poptorch_emu.options.compilation_progress import ProgressBar
from poptorch_emu.runtime import progress
from poptorch_emu.runtime.progress import progress_bar

STEPS = ("trace", "lower")


class Stream(io.StringIO):
    """A stream that reports whether it is a terminal."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


def compile_under_context(said: str = "") -> None:
    with progress_bar(STEPS, is_shown=True) as on_step:
        for step in STEPS:
            on_step(step)
            if said:
                logger.warning(said)


def compile_under_object(said: str = "") -> None:
    bar = ProgressBar()
    for done in (0, 50, 100):
        bar(done, 100)
        if said:
            logger.warning(said)


@pytest.fixture(params=[compile_under_context, compile_under_object])
def compile_once(request, monkeypatch):
    monkeypatch.setattr(progress, "_is_hidden", False)
    return request.param


def test_progress_in_a_file_then_is_one_plain_line(compile_once, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Stream(is_terminal=False))
    compile_once()
    text = sys.stderr.getvalue()
    assert text.startswith("Graph compilation: 100% in 0.") and text.endswith(" s\n")
    assert text[:-1].isprintable()


def test_progress_on_a_terminal_then_is_a_bar_that_moves(compile_once, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Stream(is_terminal=True))
    compile_once()
    text = sys.stderr.getvalue()
    assert "\rGraph compilation:   0%|" in text and "\rGraph compilation: 100%|" in text
    assert " in 0." not in text


def test_log_line_while_the_bar_is_shown_then_has_a_line_of_its_own(compile_once, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Stream(is_terminal=True))
    compile_once("something of note")
    # A terminal goes on at the beginning of the line after each "\r".
    lines = [line for line in sys.stderr.getvalue().split("\n") if "something" in line]
    assert len(lines) >= 2
    for line in lines:
        *before, shown = line.split("\r")
        assert "%" not in shown and shown.endswith("something of note")
        assert not before or not before[-1].strip()


@pytest.mark.parametrize("is_terminal", [False, True])
def test_progress_that_is_not_shown_then_writes_nothing(is_terminal, monkeypatch):
    monkeypatch.setattr(progress, "_is_hidden", False)
    monkeypatch.setattr(sys, "stderr", Stream(is_terminal))
    with progress_bar(STEPS, is_shown=False) as on_step:
        on_step("lower")
    assert not sys.stderr.getvalue()


def test_progress_of_what_fails_then_a_file_has_no_line(monkeypatch):
    monkeypatch.setattr(progress, "_is_hidden", False)
    monkeypatch.setattr(sys, "stderr", Stream(is_terminal=False))
    with pytest.raises(KeyError), progress_bar(STEPS, is_shown=True):
        raise KeyError
    assert not sys.stderr.getvalue()
