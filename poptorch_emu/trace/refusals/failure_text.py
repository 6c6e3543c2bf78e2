"""Rewrites errors of PyTorch about the tensors of a trace in the user's terms.

In a trace, tensors have types and shapes, but no values and no memory. If PyTorch fails on them,
its message names internal classes or dispatch, which a user does not know.
"""

from __future__ import annotations

import opcode
import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from poptorch_emu.errors import Error
from poptorch_emu.trace.places.source_line import is_users_file, links_of
from poptorch_emu.trace.refusals import refusal

_RAISE = opcode.opmap["RAISE_VARARGS"]
_TENSOR_CLASS = re.compile(r"torch\._subclasses\.fake_tensor\.FakeTensor|\bFakeTensor\b")
_DISPATCH = re.compile(
    r"FakeTensor|\bfake\b|\bMeta\b|'meta'|\bNYI\b|DispatchKey|dispatch key|Proxy|SymInt|"
    r"'\w+' backend|aten::|\baten\.|tensor subclass|TensorOptions|vmap over|on CPU\b"
)
_OTHER_DEVICE = re.compile(
    r"not linked with support for \w+ devices|(not|without) (compiled with )?CUDA|ATen_cuda|"
    r"(requires|only supported on) CUDA|dummy base class|accelerator device|"
    r"NVIDIA driver|CUDA error"
)


@contextmanager
def in_users_terms() -> Iterator[None]:
    """Adds a sentence to PyTorch's errors, and ends their traceback at the user's code.

    Raises:
        Error: an operation of PyTorch failed because tensors have no values yet, or are on the IPU.
        TypeError, AttributeError: PyTorch raises them for any tensor.
    """
    try:
        yield
    except Error:
        raise
    except Exception as failure:
        trace = _users_part(failure.__traceback__)
        told = failure if _is_raised_by_user(failure.__traceback__) else _told(failure, trace)
        if told is failure:
            raise
        raise told.with_traceback(trace) from None


def _told(failure: Exception, trace: TracebackType | None) -> Exception:
    text = str(failure)
    line = _last_line(trace)
    if _OTHER_DEVICE.search(text):
        return refusal.other_device(_shortened(text), line)
    if not _DISPATCH.search(f"{type(failure).__name__}: {text}"):
        return failure
    text = _TENSOR_CLASS.sub("Tensor", text)
    for kind in (AttributeError, TypeError):
        if isinstance(failure, kind):
            return kind(f"{text}\nat {line}, where tensors have types and shapes, but no values")
    return refusal.without_values(f"{type(failure).__name__}: {_shortened(text)}", line)


def _shortened(text: str) -> str:
    """Returns the first sentence; later ones give advice about PyTorch's internals."""
    return text.strip().splitlines()[0].split(". ")[0].rstrip(".") if text.strip() else ""


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """Returns a traceback up to the user's last frame; all of it if there is none."""
    frames = links_of(trace)
    while frames and not is_users_file(frames[-1].tb_frame.f_code.co_filename):
        frames.pop()
    part = None
    for frame in reversed(frames):
        part = TracebackType(part, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return part or trace


def _is_raised_by_user(trace: TracebackType | None) -> bool:
    """Returns whether the innermost instruction is a `raise` or `assert` in the user's code."""
    last = links_of(trace)[-1]
    code = last.tb_frame.f_code
    return is_users_file(code.co_filename) and code.co_code[last.tb_lasti] == _RAISE


def _last_line(trace: TracebackType | None) -> str:
    last = links_of(trace)[-1]
    return f"{last.tb_frame.f_code.co_filename}:{last.tb_lineno}"
