"""Loggers of the package, and the hook that sends uncaught exceptions to them.

Names and layout are PopTorch's: logger "poptorch::python" with one handler on stderr, and an
initial level from `POPTORCH_LOG_LEVEL`. Messages of the layers that PopTorch wrote in C++ go to the
logger "poptorch:cpp", whose handler writes to the destination in `POPTORCH_LOG_DEST` and limits
repeated messages.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import traceback
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from types import TracebackType

from tqdm import tqdm

from poptorch_emu.near_names import did_you_mean
from poptorch_emu.troubleshooting import linked
from poptorch_emu.untrusted.texts import printable_lines

logger = logging.getLogger("poptorch::python")
compiler_logger = logging.getLogger("poptorch:cpp")

_LEVEL_OF_NAME = {
    "TRACE": logging.DEBUG,
    "TRACE_ALL": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "DEBUG_IR": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERR": logging.ERROR,
    "OFF": logging.CRITICAL,
}
# Source: the default of PopTorch's Options.maxRepeatLogs.
DEFAULT_MAX_REPEATS = 4
_REPEAT_KIND = "repeat_kind"
# Limits of the log that reports show: number of lines, and characters of each line.
_NUM_REMEMBERED, _LONGEST_REMEMBERED = 500, 2000
_NAME_OF_NUMBER = {0: "TRACE", 1: "DEBUG", 2: "INFO", 3: "WARN", 4: "ERR", 6: "OFF"}

_COLOUR_OF_LEVEL = {
    logging.DEBUG: "\x1b[36m",
    logging.INFO: "\x1b[32m",
    logging.WARNING: "\x1b[33m",
    logging.ERROR: "\x1b[31m",
    logging.CRITICAL: "\x1b[1;31m",
}
_COLOUR_END = "\x1b[0m"


def set_log_level(level: int | str) -> None:
    """Sets the level of messages that are logged (exact).

    Args:
        level: "TRACE", "DEBUG", "INFO", "WARN", "ERR" or "OFF", or, in the old style, its number:
            0, 1, 2, 3, 4, 6.

    Raises:
        ValueError: the level is unknown.
    """
    if isinstance(level, int):
        if level not in _NAME_OF_NUMBER:
            known = ", ".join(f"{number} ({name})" for number, name in _NAME_OF_NUMBER.items())
            raise ValueError(f"Invalid log level integer: {level}. Valid values are {known}.")
        level = _NAME_OF_NUMBER[level]
    if not isinstance(level, str) or level not in _LEVEL_OF_NAME:
        raise ValueError(
            f"Unknown log level: {level}. Valid values are DEBUG, ERR, INFO, OFF, TRACE and WARN."
            f"{did_you_mean(level, _LEVEL_OF_NAME)}"
        )
    for each in (logger, compiler_logger):
        each.setLevel(_LEVEL_OF_NAME[level])


def set_popart_log_level(level: str) -> None:
    """Checks a log level of PopART, which does not exist here (accepted).

    Raises:
        ValueError: `level` is not the name of a level.
    """
    if not isinstance(level, str) or level not in _LEVEL_OF_NAME:
        raise ValueError(f"Level must be one of {', '.join(_LEVEL_OF_NAME)}, not {level!r}.")


class _Formatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("[%(asctime)s.%(msecs)03d] [%(name)s]", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        level = record.levelname.lower()
        message = printable_lines(record.message)
        line = f"{super().formatMessage(record)} [{level}] {message}"
        if sys.stdout.isatty() and sys.stderr.isatty():
            return f"{_COLOUR_OF_LEVEL.get(record.levelno, '')}{linked(line)}{_COLOUR_END}"
        return line


class _StreamHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to the current `sys.stderr` or `sys.stdout`, so that redirecting them works."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._stream_name = name

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = getattr(sys, self._stream_name)
        if not tqdm._instances:
            super().emit(record)
            return
        with tqdm.external_write_mode(file=self.stream):  # Hides progress bars while it writes.
            super().emit(record)


class _DestinationFile(logging.FileHandler):
    """Writes to a file; if the file cannot be opened, writes to stderr after one warning."""

    def __init__(self, path: str) -> None:
        super().__init__(path, delay=True)
        self._stderr: _StreamHandler | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self._stderr is None:
            try:
                super().emit(record)
                return
            except OSError as error:
                self._stderr = _StreamHandler("stderr")
                self._stderr.setFormatter(self.formatter)
                logger.warning("POPTORCH_LOG_DEST is no file that can be written: %s", error)
        self._stderr.emit(record)


def install_excepthook() -> None:
    """Makes uncaught exceptions go to the logger, at level CRITICAL (exact)."""
    sys.excepthook = log_uncaught


def log_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Logs an exception with its traceback, and then the output of a failed child process."""
    logger.critical("".join(traceback.format_exception(kind, error, trace)).rstrip("\n"))
    if isinstance(error, subprocess.CalledProcessError):
        output = error.stderr or error.stdout
        if output:
            logger.critical(
                output.decode(errors="replace") if isinstance(output, bytes) else output
            )


class _RepeatLimit(logging.Filter):
    """Passes a repeatable message a limited number of times, then one line about further ones."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = DEFAULT_MAX_REPEATS
        self._counts: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        kind = getattr(record, _REPEAT_KIND, None)
        if kind is None:
            return True
        self._counts[kind] += 1
        if self._counts[kind] == self.limit + 1:
            record.msg, record.args = "...repeated messages suppressed...", ()
        return self._counts[kind] <= self.limit + 1

    def start_again(self, limit: int) -> None:
        """Resets the counts and sets the limit."""
        self.limit = limit
        self._counts.clear()


_repeat_limit = _RepeatLimit()


def start_repeats(limit: int) -> None:
    """Resets the counts of repeatable messages; `limit` of each kind will be shown."""
    _repeat_limit.start_again(limit)


def warn_repeatable(kind: str, message: str, *args: object) -> None:
    """Logs a compiler warning that may be repeated; messages of one `kind` are counted together."""
    compiler_logger.warning(message, *args, extra={_REPEAT_KIND: kind})


_is_muted: ContextVar[bool] = ContextVar("is_muted", default=False)


@contextmanager
def muted() -> Iterator[None]:
    """Drops the messages of this thread, for work that repeats what was done before."""
    token = _is_muted.set(True)
    try:
        yield
    finally:
        _is_muted.reset(token)


class _Recent(logging.Filter):
    """Stores the last lines that were logged, for reports; passes every message."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[tuple[str, str, str]] = deque(maxlen=_NUM_REMEMBERED)

    def filter(self, record: logging.LogRecord) -> bool:
        moment = datetime.fromtimestamp(record.created)
        text = record.getMessage()[:_LONGEST_REMEMBERED]
        self.lines.append((f"{moment:%H:%M:%S}.{record.msecs:03.0f}", record.levelname, text))
        return True


_recent = _Recent()


def recent_lines() -> tuple[tuple[str, str, str], ...]:
    """Returns time, level and text of the last lines that this process logged, at most 500."""
    return tuple(_recent.lines)


def _destination_handler() -> logging.Handler:
    destination = os.environ.get("POPTORCH_LOG_DEST") or "stderr"
    if destination in ("stderr", "stdout"):
        return _StreamHandler(destination)
    return _DestinationFile(destination)


def _set_up() -> None:
    for each, handler in (
        (logger, _StreamHandler("stderr")),
        (compiler_logger, _destination_handler()),
    ):
        if not each.handlers:
            handler.setFormatter(_Formatter())
            each.addHandler(handler)
    for each in (logger, compiler_logger):
        each.addFilter(lambda _: not _is_muted.get())
    compiler_logger.addFilter(_repeat_limit)
    for each in (logger, compiler_logger):
        each.addFilter(_recent)
    try:
        set_log_level(os.environ.get("POPTORCH_LOG_LEVEL") or "WARN")
    except ValueError as error:
        raise ValueError(f"POPTORCH_LOG_LEVEL: {error}") from None


_set_up()
