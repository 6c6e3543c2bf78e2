"""Checks of values that decide nothing else: `assert`, `torch._check_tensor_all`, `if bad: raise`.

Such a check passes or ends the program, so it is no reason to reject a model. The compiled model
omits the check, because a trace has no values. Each line is named in one warning.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.torch_versions import CHECKS
from poptorch_emu.trace.places.source_line import user_source
from poptorch_emu.trace.refusals import leniency
from poptorch_emu.trace.refusals.check_code import passing_comparison, passing_value
from poptorch_emu.trace.refusals.refusal import READS_A_VALUE
from poptorch_emu.troubleshooting import Topic

# Operators that check values when the model runs. The engine omits them.
_ASSERTIONS = frozenset({torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg})
# Paths of code between the read of a value and the code that tests the value.
_BETWEEN = ("torch/_tensor.py", "torch/overrides.py", "torch/utils/", "torch/_subclasses/")
_PACKAGE = __file__.rpartition("trace")[0]


class _Passing:
    """Stands for a number that a check compares. Each comparison has the outcome that passes."""

    def __init__(self, outcome: bool) -> None:
        self._outcome = outcome

    def _compare(self, _: Any) -> bool:
        return self._outcome

    __lt__ = __le__ = __gt__ = __ge__ = _compare
    __eq__ = __ne__ = _compare


# Outcome of the comparison whose number `item` reads, and whether the trace has no such number.
_awaited: bool | None = None
_is_unread = False


def item(tensor: torch.Tensor) -> Any:
    """Returns `tensor.item()`, or an object that passes the running check if that compares it."""
    global _awaited, _is_unread
    frame = _users_frame()
    if frame is not None:
        _awaited = passing_comparison(frame.f_code, frame.f_lasti)
    try:
        value = tensor.item()
        return _Passing(_awaited) if _awaited is not None and _is_unread else value
    finally:
        _awaited, _is_unread = None, False


def outcome_of_check(reader: Any) -> bool | None:
    """Returns the value that lets the running check pass; None if no check is running.

    Args:
        reader: operator that reads a value, or whose result has a shape that depends on a value.

    Raises:
        Error: strict mode is on.
    """
    global _is_unread
    if reader not in READS_A_VALUE:
        return None
    if _awaited is not None:
        _is_unread = True
        _tolerate()
        return True
    frame = _users_frame()
    if frame is None:
        return None
    outcome = True if frame.f_code in CHECKS else passing_value(frame.f_code, frame.f_lasti)
    if outcome is not None:
        _tolerate()
    return outcome


def _users_frame() -> FrameType | None:
    """Returns the frame of the code that reads a value."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_between(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def warn_of_assertion(func: Any) -> None:
    """Warns that an operator is omitted if it checks values when the model runs.

    Raises:
        Error: strict mode is on.
    """
    if func in _ASSERTIONS:
        _tolerate()


def _tolerate() -> None:
    """Warns that the running check is omitted; raises in strict mode."""
    refused = compiler_error(
        f"The check at {user_source()} (assert, torch._check, if ...: raise) reads a value that "
        f"only exists when the model runs; {Topic.PYTHON_CONTROL_FLOW}"
    )
    leniency.tolerate("check", refused, "It is left out here: wrong values are not found.")


def _is_between(file: str) -> bool:
    return file.startswith(_PACKAGE) or any(part in file for part in _BETWEEN)
