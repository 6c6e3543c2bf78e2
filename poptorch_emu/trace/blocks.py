"""The block that is open while the user's `forward` is traced.

The annotations of the front end (`Block`, `BeginBlock`, ...) call `begin_block` and `end_block`;
the tracer asks `current_block` for each operation. One trace runs at a time in a process; other
threads wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from poptorch_emu.errors import compiler_error
from poptorch_emu.ir.record import BEFORE_FIRST_BLOCK, BlockPlace
from poptorch_emu.trace.source_line import user_source
from poptorch_emu.troubleshooting import Topic

Resolver = Callable[[str, "int | None"], BlockPlace]


@dataclass
class _Trace:
    resolve: Resolver
    current: BlockPlace | None = BEFORE_FIRST_BLOCK
    auto_id: int = 0
    history: list[BlockPlace] = field(default_factory=list)
    thread: int = field(default_factory=threading.get_ident)


_active: _Trace | None = None
_one_at_a_time = threading.RLock()


@contextmanager
def tracing(resolve: Resolver) -> Iterator[None]:
    """Activates the annotations of blocks; `resolve` maps a block's id and IPU to its place."""
    global _active
    with _one_at_a_time:
        check_not_tracing()
        _active = _Trace(resolve)
        try:
            yield
        finally:
            _active = None


def check_not_tracing() -> None:
    """Checks that this thread is not tracing a model. Other threads wait for each other instead.

    Raises:
        Error: the forward that is being traced calls a wrapped model.
    """
    if _active is not None and _active.thread == threading.get_ident():
        raise compiler_error(
            f"A model is being traced already, and its forward calls a wrapped model at "
            f"{user_source()}. Call the user's module instead (the attribute `model` of the "
            "wrapper), or wrap only the outer one."
        )


@contextmanager
def paused() -> Iterator[None]:
    """Suspends the trace for code of the host, so that nothing it does is recorded."""
    global _active
    active, _active = _active, None
    try:
        yield
    finally:
        _active = active


def is_tracing() -> bool:
    """Returns whether a model's `forward` is being traced (exact)."""
    return _active is not None


def begin_block(user_id: str, ipu_id: int | None) -> None:
    """Opens a block for all following operations; does nothing outside a trace."""
    if _active is not None:
        _active.current = _active.resolve(user_id, ipu_id)
        _active.history.append(_active.current)


def end_block() -> None:
    """Closes the open block. An operation before the next block is an error."""
    if _active is not None:
        _active.current = None


def current_block(operation: str = "", module: str = "") -> BlockPlace:
    """Returns the place of an operation that is recorded now.

    Args:
        operation: name of the operation for the error; "" for a constant.
        module: name of the module whose `forward` runs the operation; "" for the model itself.

    Raises:
        Error: a block has ended and no other has begun.
    """
    assert _active is not None, "current_block is asked only during a trace"
    if _active.current is None:
        last = _active.history[-1].block_id if _active.history else ""
        what = f"operation {operation}" if operation else "a constant"
        where = f"module {module!r}" if module else "the model"
        raise compiler_error(
            "No active Block, all the ops must belong to a Block: "
            f"{what} of {where} at {user_source()} was met after block '{last}' had ended. Move it "
            f"into a block, or start one with poptorch.BeginBlock; {Topic.NO_BLOCK}"
        )
    return _active.current


def next_auto_id() -> str:
    """Returns the next automatic block id: "0", "1", ..."""
    if _active is None:
        return "0"
    _active.auto_id += 1
    return str(_active.auto_id - 1)


def reset_auto_id() -> None:
    """Starts automatic block ids at "0" again."""
    if _active is not None:
        _active.auto_id = 0
