"""The exceptions that users see, and the functions that create them.

Two layers raise `Error`: the Python front end (`make_error`), and the layers from capture to the
engine (`compiler_error`), which PopTorch wrote in C++. The layout of their texts differs. In both,
characters that could control the terminal become escapes, because names come from the user.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

from poptorch_emu.untrusted.files import write_whole
from poptorch_emu.untrusted.texts import printable_lines

MAX_TEXT_LINES = 80
LOG_FILE_NAME = "poptorch_error.log"


class Error(Exception):
    """Raised if the device, its compiler or the front end cannot do what was requested (exact).

    Attributes:
        message: description of the error without prefix.
        type: short category such as "poptorch_py_error" or "poptorch_cpp_error".
        location: contexts of the error, one on each line, innermost first; "" for errors of the
            Python layer.
    """

    message: str = ""
    type: str = ""
    location: str = ""


class RecoverableError(Error):
    """Raised for a fault of the machine that a reset repairs (exact).

    Attributes:
        recovery_action: "IPU_RESET", "LINK_RESET", "PARTITION_RESET" or "FULL_RESET".
    """

    recovery_action: str = ""


class UnrecoverableError(Error):
    """Raised for a fault of the machine that no reset repairs (exact)."""


class ConfigFileError(Exception):
    """Raised if a file for `Options.loadFromFile` is not valid Python (exact)."""


_CLASS_OF_TYPE: dict[str, type[Error]] = {
    "poplar_recoverable_runtime_error": RecoverableError,
    "poplar_unrecoverable_runtime_error": UnrecoverableError,
}


def require(condition: bool, message: str) -> None:
    """Raises `AssertionError` with `message` unless `condition` holds, also under `python -O`.

    For mistakes of the user that PopTorch reports by an assertion.
    """
    if not condition:
        raise AssertionError(message)


def make_error(msg: str) -> Error:
    """Returns an `Error` of the Python layer (exact); the caller raises it."""
    msg = printable_lines(msg)
    return _with_attributes(Error(f"'poptorch_py_error': {msg}"), msg, "poptorch_py_error", "")


def compiler_error(
    message: str,
    type: str = "poptorch_cpp_error",
    location: str = "",
    recovery_action: str = "",
) -> Error:
    """Returns an error in the layout of PopTorch's C++ layer; the caller raises it.

    A text of more than 80 lines is written to `poptorch_error.log` in the current directory, and
    the message is shortened.

    Args:
        message: the fault, the expectation and the remedy.
        type: category, which decides between `Error`, `RecoverableError` and `UnrecoverableError`.
        location: contexts, one on each line, innermost first; by default the calling function.
        recovery_action: reset that repairs a recoverable fault.
    """
    message, location = printable_lines(message), printable_lines(location)
    file_and_line, function = _place_of(sys._getframe(1))
    location = location or f"{function} ({file_and_line})"
    lines = [f"In {file_and_line}: '{type}': {message}"]
    if recovery_action:
        lines.append(f"Recovery action required: {recovery_action}")
    lines.append("Error raised in:")
    lines += [f"  [{depth}] {context}" for depth, context in enumerate(location.splitlines())]
    error = _CLASS_OF_TYPE.get(type, Error)(_shorten("\n".join(lines)))
    if isinstance(error, RecoverableError):
        error.recovery_action = recovery_action
    return _with_attributes(error, message, type, location)


def _with_attributes(error: Error, message: str, type: str, location: str) -> Error:
    error.message, error.type, error.location = message, type, location
    return error


def _place_of(frame: FrameType) -> tuple[str, str]:
    code = frame.f_code
    return f"{Path(code.co_filename).name}:{frame.f_lineno}", code.co_name


def _shorten(text: str) -> str:
    lines = text.splitlines()
    if len(lines) <= MAX_TEXT_LINES:
        return text
    try:
        write_whole(Path(LOG_FILE_NAME), f"{text}\n".encode(errors="backslashreplace"))
    except OSError:
        return text  # The file cannot be written, so the message contains the whole text.
    kept = lines[: MAX_TEXT_LINES - 1]
    return "\n".join([*kept, f"See {LOG_FILE_NAME} for details"])
