"""Levels, layout and the hook for uncaught exceptions."""

import logging
import re
import subprocess
import sys

import pytest
from support.forked_programs import PYTORCH, run_forked
from tqdm import tqdm

from poptorch_emu import log

pytestmark = pytest.mark.feature("Logging", fidelity="exact")


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("TRACE", logging.DEBUG),
        ("TRACE_ALL", logging.DEBUG),
        ("DEBUG", logging.DEBUG),
        ("DEBUG_IR", logging.DEBUG),
        ("INFO", logging.INFO),
        ("WARN", logging.WARNING),
        ("ERR", logging.ERROR),
        ("OFF", logging.CRITICAL),
        (0, logging.DEBUG),
        (1, logging.DEBUG),
        (2, logging.INFO),
        (3, logging.WARNING),
        (4, logging.ERROR),
        (6, logging.CRITICAL),
    ],
)
def test_set_log_level_when_known_then_python_level_follows(level, expected):
    log.set_log_level(level)
    assert log.logger.level == expected


@pytest.mark.parametrize("level", [5, 7, -1])
def test_set_log_level_when_integer_unknown_then_refuses(level):
    with pytest.raises(ValueError, match=f"Invalid log level integer: {level}"):
        log.set_log_level(level)


@pytest.mark.parametrize("level", ["WARNING", "info", ""])
def test_set_log_level_when_name_unknown_then_lists_the_valid(level):
    with pytest.raises(ValueError, match=f"Unknown log level: {level}\\. Valid values are"):
        log.set_log_level(level)


def test_set_popart_log_level_when_not_a_name_then_refuses():
    log.set_popart_log_level("INFO")
    with pytest.raises(ValueError, match="^Level must be one of "):
        log.set_popart_log_level(2)


def test_logger_name_then_is_poptorchs():
    assert log.logger is logging.getLogger("poptorch::python")
    # pytest's own handlers may be there too.
    own = [each for each in log.logger.handlers if "_pytest" not in type(each).__module__]
    assert len(own) == 1


def test_record_when_not_on_a_terminal_then_has_the_plain_layout(capsys):
    log.logger.warning("%d blocks", 3)
    line = capsys.readouterr().err
    assert re.fullmatch(
        r"\[\d\d:\d\d:\d\d\.\d{3}\] \[poptorch::python\] \[warning\] 3 blocks\n", line
    )


def test_record_with_a_name_that_could_control_the_terminal_then_shows_escapes(capsys):
    log.logger.warning("block %s\nof two lines", "\x1b[2J")
    assert capsys.readouterr().err.endswith(" block \\x1b[2J\nof two lines\n")


@pytest.mark.parametrize("out_is_terminal", [True, False], ids=["both", "stderr-only"])
def test_record_then_is_coloured_only_when_both_are_terminals(out_is_terminal, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: out_is_terminal)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    log.logger.error("hot")
    assert ("\x1b[" in capsys.readouterr().err) == out_is_terminal


def test_log_uncaught_then_everything_comes_once(caplog):
    try:
        raise ValueError("bad batch")
    except ValueError as error:
        log.log_uncaught(type(error), error, error.__traceback__)
    (record,) = caplog.records
    assert record.message.startswith("Traceback")
    assert record.message.endswith("ValueError: bad batch")
    assert record.message.count("ValueError: bad batch") == 1
    assert record.levelno == logging.CRITICAL


@pytest.mark.parametrize(
    ("stdout", "stderr", "shown"),
    [(b"out", b"broken", "broken"), ("out", None, "out"), (None, None, None)],
    ids=["stderr", "stdout", "nothing"],
)
def test_log_uncaught_when_a_child_failed_then_shows_its_output(stdout, stderr, shown, caplog):
    error = subprocess.CalledProcessError(2, ["make"], stdout, stderr)
    log.log_uncaught(type(error), error, None)
    assert [record.message for record in caplog.records][1:] == ([shown] if shown else [])


def test_excepthook_in_a_fresh_process_then_logs_at_critical_even_when_off():
    program = "from poptorch_emu import log; log.install_excepthook(); raise KeyError('w')"
    done = run_forked(["-c", program], {"POPTORCH_LOG_LEVEL": "OFF"}, loaded=PYTORCH)
    assert done.returncode == 1
    assert "[poptorch::python] [critical] Traceback (most recent call last):\n" in done.stderr
    assert done.stderr.count("KeyError: 'w'") == 1


def test_log_line_when_a_bar_is_shown_then_has_a_line_of_its_own(capsys):
    with tqdm(total=2, file=sys.stderr) as bar:
        bar.update(1)
        log.logger.error("in between")
    lines = capsys.readouterr().err.replace("\r", "\n").splitlines()
    assert [line for line in lines if line.endswith("[error] in between")]
    assert all(line.startswith("[") for line in lines if "in between" in line)


@pytest.mark.parametrize(("level", "has_stack"), [("WARN", False), ("DEBUG", True)])
def test_process_when_terminated_then_shows_its_stack_in_search_of_a_fault_only(level, has_stack):
    program = "import os, signal, poptorch_emu; os.kill(os.getpid(), signal.SIGTERM)"
    done = run_forked(["-c", program], {"POPTORCH_LOG_LEVEL": level}, loaded=PYTORCH)
    assert done.returncode == -15
    assert ("most recent call first" in done.stderr) is has_stack
