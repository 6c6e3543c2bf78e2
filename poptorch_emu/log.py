"""The one logger of the package, and how uncaught exceptions reach it.

The names and the layout are PopTorch's: logger "poptorch::python", one handler on stderr, the first
level from `POPTORCH_LOG_LEVEL`. There is no second logger for C++: the engine logs nothing.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import traceback
from types import TracebackType

logger = logging.getLogger("poptorch::python")

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
    """Sets what is logged (exact).

    Args:
        level: "TRACE", "DEBUG", "INFO", "WARN", "ERR" or "OFF", or in the old style its number:
            0, 1, 2, 3, 4, 6.

    Raises:
        ValueError: there is no such level.
    """
    if isinstance(level, int):
        if level not in _NAME_OF_NUMBER:
            known = ", ".join(f"{number} ({name})" for number, name in _NAME_OF_NUMBER.items())
            raise ValueError(f"Invalid log level integer: {level}. Valid values are {known}.")
        level = _NAME_OF_NUMBER[level]
    if level not in _LEVEL_OF_NAME:
        raise ValueError(
            f"Unknown log level: {level}. Valid values are DEBUG, ERR, INFO, OFF, TRACE and WARN."
        )
    logger.setLevel(_LEVEL_OF_NAME[level])


def set_popart_log_level(level: str) -> None:
    """Checks the level of a layer that we do not have (accepted).

    Raises:
        ValueError: `level` is not the name of a level.
    """
    if level not in _LEVEL_OF_NAME:
        raise ValueError(f"Level must be one of {', '.join(_LEVEL_OF_NAME)}, not {level!r}.")


class _Formatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("[%(asctime)s.%(msecs)03d] [%(name)s]", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        level = record.levelname.lower()
        line = f"{super().formatMessage(record)} [{level}] {record.message}"
        if sys.stdout.isatty() and sys.stderr.isatty():
            return f"{_COLOUR_OF_LEVEL.get(record.levelno, '')}{line}{_COLOUR_END}"
        return line


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to what `sys.stderr` is now, so that redirecting it works."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def install_excepthook() -> None:
    """Makes uncaught exceptions go to the logger, at level CRITICAL (exact)."""
    sys.excepthook = log_uncaught


def log_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Logs an exception: its last line first, then all of it, then what a child process said."""
    lines = traceback.format_exception(kind, error, trace)
    logger.critical(lines[-1].rstrip("\n"))
    logger.critical("".join(lines).rstrip("\n"))
    if isinstance(error, subprocess.CalledProcessError):
        output = error.stderr or error.stdout
        if output:
            logger.critical(
                output.decode(errors="replace") if isinstance(output, bytes) else output
            )


def _set_up() -> None:
    if not logger.handlers:
        handler = _StderrHandler()
        handler.setFormatter(_Formatter())
        logger.addHandler(handler)
    set_log_level(os.environ.get("POPTORCH_LOG_LEVEL", "WARN"))


_set_up()
