"""Finds in the code of Python which outcome of a test raises no error.

A value that is tested, and decides nothing but whether an error is raised, may be left out.
"""

from __future__ import annotations

import dis
from functools import cache
from types import CodeType

_JUMPS = frozenset({"TO_BOOL", "NOT_TAKEN", "CACHE", "PRECALL", "EXTENDED_ARG", "NOP"})
_MOVES_ON = ("STORE_", "DELETE_", "RETURN_", "YIELD_", "RAISE_", "RERAISE", "FOR_ITER", "SEND")
# Instructions for an operand, with the number of values that they take from the stack.
_OPERANDS = {
    "LOAD_ATTR": 1,
    "LOAD_CONST": 0,
    "LOAD_DEREF": 0,
    "LOAD_FAST": 0,
    "LOAD_GLOBAL": 0,
    "LOAD_SMALL_INT": 0,
    "BINARY_": 2,
}


@cache
def passing_value(code: CodeType, offset: int) -> bool | None:
    """Returns the truth value that lets a test pass; None if no branch of it raises.

    Args:
        code: code of the function that contains the test.
        offset: offset of a conditional jump, or of a call whose result is tested.
    """
    steps = list(dis.get_instructions(code))
    place = _place_of(steps, offset)
    if place is None:
        return None
    return _passing_branch(code, steps, _after_call(steps, place) or place, offset)


@cache
def passing_comparison(code: CodeType, offset: int) -> bool | None:
    """Returns the outcome of a comparison that passes; None if it may decide something else.

    Args:
        code: code of the function that contains the comparison.
        offset: offset of a call, whose result must be compared once and used for nothing else.
    """
    steps = list(dis.get_instructions(code))
    place = _place_of(steps, offset)
    start = None if place is None else _after_call(steps, place)
    if start is None:
        return None
    depth = 1  # Number of values on the stack, from the result of the call on.
    for index in range(start, len(steps)):
        step = steps[index]
        if step.opname == "COMPARE_OP":
            is_compared = depth in (1, 2)  # The result is the right or the left operand.
            return _passing_branch(code, steps, index + 1, offset) if is_compared else None
        if _is_part(step):
            continue
        taken = next((n for name, n in _OPERANDS.items() if step.opname.startswith(name)), depth)
        if taken >= depth:
            return None
        depth += dis.stack_effect(step.opcode, step.arg)
    return None


def _place_of(steps: list[dis.Instruction], offset: int) -> int | None:
    return next((place for place, step in enumerate(steps) if step.offset == offset), None)


def _after_call(steps: list[dis.Instruction], place: int) -> int | None:
    """Returns the place after a call; None if there is none. Python 3.11 may call in PRECALL."""
    place += steps[place].opname == "PRECALL"
    return place + 1 if steps[place].opname.startswith("CALL") else None


def _passing_branch(
    code: CodeType, steps: list[dis.Instruction], start: int, offset: int
) -> bool | None:
    """Returns the condition, true or false, that avoids an error; None if no branch raises.

    Args:
        code: code of the function.
        steps: its instructions.
        start: index of the jump, or of instructions that belong to it.
        offset: offset of the instruction that reads the tested value.
    """
    tests = (place for place in range(start, len(steps)) if not _is_part(steps[place]))
    test = next(tests, None)
    if test is None or "JUMP" not in steps[test].opname:
        return None
    jump = steps[test]
    if_true = jump.opname.endswith("IF_TRUE")
    if not (if_true or jump.opname.endswith("IF_FALSE")):
        return None
    target = _place_of(steps, jump.argval)
    assert target is not None, "a jump has a target"
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
