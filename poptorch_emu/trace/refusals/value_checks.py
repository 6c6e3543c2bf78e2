"""Checks of values that decide nothing else: `assert`, `torch._check_tensor_all`, `if bad: raise`.

Such a check passes or ends the program, so it is no reason to reject a model. The compiled model
omits the check, because a trace has no values. Each line is named in one warning.
"""

from __future__ import annotations

import dis
import sys
from functools import cache
from types import CodeType, FrameType
from typing import Any

import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.torch_versions import CHECKS
from poptorch_emu.trace.places.source_line import user_source
from poptorch_emu.trace.refusals import leniency
from poptorch_emu.trace.refusals.refusal import READS_A_VALUE
from poptorch_emu.troubleshooting import Topic

# Operators that check values when the model runs. The engine omits them.
_ASSERTIONS = frozenset({torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg})
# Paths of code between the read of a value and the code that tests the value.
_BETWEEN = ("torch/_tensor.py", "torch/overrides.py", "torch/utils/", "torch/_subclasses/")
_PACKAGE = __file__.rpartition("trace")[0]
_JUMPS = frozenset({"TO_BOOL", "NOT_TAKEN", "CACHE", "PRECALL", "EXTENDED_ARG", "NOP"})
_MOVES_ON = ("STORE_", "DELETE_", "RETURN_", "YIELD_", "RAISE_", "RERAISE", "FOR_ITER", "SEND")


def outcome_of_check(reader: Any) -> bool | None:
    """Returns the value that lets the running check pass; None if no check is running.

    Args:
        reader: operator that reads a value, or whose result has a shape that depends on a value.

    Raises:
        Error: strict mode is on.
    """
    if reader not in READS_A_VALUE:
        return None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_between(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return None
    outcome = True if frame.f_code in CHECKS else _passing_value(frame.f_code, frame.f_lasti)
    if outcome is not None:
        _tolerate()
    return outcome


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


@cache
def _passing_value(code: CodeType, offset: int) -> bool | None:
    """Returns the truth value that lets a test pass; None if no branch of it raises.

    Args:
        code: code of the function that contains the test.
        offset: offset of a conditional jump, or of a call whose result is tested.
    """
    steps = list(dis.get_instructions(code))
    place_of = {step.offset: index for index, step in enumerate(steps)}
    place = place_of.get(offset)
    if place is None:
        return None
    is_call = steps[place].opname.startswith("CALL")
    tests = (index for index in range(place + is_call, len(steps)) if not _is_part(steps[index]))
    test = next(tests, None)
    if test is None or "JUMP" not in steps[test].opname:
        return None
    jump = steps[test]
    if_true = jump.opname.endswith("IF_TRUE")
    if not (if_true or jump.opname.endswith("IF_FALSE")):
        return None
    target = place_of[jump.argval]
    is_caught = _is_caught(code, offset)
    if _only_raises(steps, test + 1, is_caught):
        return if_true
    return not if_true if _only_raises(steps, target, is_caught) else None


def _is_part(step: dis.Instruction) -> bool:
    """Returns whether an instruction belongs to the jump after it."""
    return step.opname in _JUMPS


def _is_caught(code: CodeType, offset: int) -> bool:
    """Returns whether a function may catch the exception of an instruction and continue."""
    entries = getattr(dis.Bytecode(code), "exception_entries", None)
    if entries is None:  # Python 3.10.
        return any(step.opname.startswith("SETUP_") for step in dis.get_instructions(code))
    return any(entry.start <= offset < entry.end for entry in entries)


def _only_raises(steps: list[dis.Instruction], start: int, is_caught: bool) -> bool:
    """Returns whether all code from `start` on only makes an exception and raises it.

    If the function may catch exceptions, only an AssertionError counts as an error.
    """
    place_of = {step.offset: index for index, step in enumerate(steps)}
    pending, seen = [start], set[int]()
    while pending:
        place = pending.pop()
        if place in seen or place == len(steps):
            continue
        seen.add(place)
        step = steps[place]
        is_caught &= not _names_assertion(step)
        if step.opname == "RAISE_VARARGS" and step.argval == 1:
            continue
        if _goes_on(step):
            return False
        if "JUMP" in step.opname:
            pending.append(place_of[step.argval])
        if not step.opname.startswith("JUMP_") or "_IF_" in step.opname:
            pending.append(place + 1)
    return not is_caught


def _goes_on(step: dis.Instruction) -> bool:
    """Returns whether an instruction has a lasting effect, or ends without an exception."""
    # pytest rewrites asserts and stores their operands in variables with this prefix.
    is_of_pytest = str(step.argval).startswith("@py_")
    return step.opname.startswith(_MOVES_ON) and not is_of_pytest


def _names_assertion(step: dis.Instruction) -> bool:
    is_global = step.opname == "LOAD_GLOBAL" and step.argval == "AssertionError"
    return is_global or step.opname in ("LOAD_ASSERTION_ERROR", "LOAD_COMMON_CONSTANT")
