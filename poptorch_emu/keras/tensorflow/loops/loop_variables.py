"""Local variables of a running function: read and changed between the passes of its loop."""

from __future__ import annotations

import ctypes
import dis
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

from poptorch_emu.keras.capture import capture_state
from poptorch_emu.keras.capture.python_state import PythonState, RepeatedCode, StoredInLoop
from poptorch_emu.keras.capture.symbolic_values import entered, left

# The rooms whose generators run between a loop and its values.
_OWN = tuple(str(Path(each).parent) for each in (__file__, capture_state.__file__))
# Before Python 3.13, f_locals is a copy of the frame's variables.
_SHOWS_COPIES = sys.version_info < (3, 13)


def frame_of_loop() -> FrameType:
    """Returns the frame of the function whose loop calls a generator of this package."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_OWN):
        assert frame.f_back is not None
        frame = frame.f_back
    return frame


def repeated_code(python: PythonState, frame: FrameType) -> RepeatedCode:
    """Returns the code of the loop that begins in a frame."""
    return RepeatedCode(python, frame.f_code.co_freevars, _stored_in_loop(frame))


def _stored_in_loop(frame: FrameType) -> StoredInLoop:
    """Returns what the code of the loop that a frame runs assigns to, beside variables."""
    listed = {each.offset: each for each in dis.get_instructions(frame.f_code)}
    loop = listed.get(frame.f_lasti)
    if loop is None or loop.opname not in ("FOR_ITER", "GET_ITER"):
        return StoredInLoop()
    if loop.opname == "GET_ITER":
        offsets = iter(offset for offset in listed if offset > loop.offset)
        loop = next(listed[each] for each in offsets if listed[each].opname == "FOR_ITER")
    body = [each for each in listed.values() if loop.offset < each.offset < loop.argval]
    attributes = {str(each.argval) for each in body if each.opname == "STORE_ATTR"}
    return StoredInLoop(attributes, any(each.opname == "STORE_SUBSCR" for each in body))


def unrolled(python: PythonState, values: Sequence[Any], is_of_python: bool) -> Iterator[Any]:
    """Yields the values of a loop whose iterations are all run.

    The code of a loop of TensorFlow changes Python's objects once. But objects that hand on values
    or keep tensors do so in all iterations.
    """
    if is_of_python:
        yield from values
        return
    code = repeated_code(python, frame_of_loop())
    for number, value in enumerate(values):
        with code.again() if number and not code.counts_each_time else nullcontext():
            yield value


def local_variables(frame: FrameType) -> dict[str, Any]:
    """Returns the local variables of a function that is running, as they are now."""
    return {name: left(_copied(value)) for name, value in frame.f_locals.items()}


def _copied(value: Any) -> Any:
    """Returns a copy of a list or dict, which later code may change in place."""
    if type(value) is list:
        return list(map(_copied, value))
    return {name: _copied(each) for name, each in value.items()} if type(value) is dict else value


def set_local_variables(frame: FrameType, values: Mapping[str, Any]) -> None:
    """Assigns values to local variables of a running function."""
    shown = frame.f_locals
    shown.update({name: entered(value) for name, value in values.items()})
    if _SHOWS_COPIES:
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
