"""The block that is open while the user's `forward` is traced.

The annotations of the front end (`Block`, `BeginBlock`, ...) call `begin_block` and `end_block`;
the tracer asks `current_block` for each operation. One trace runs at a time in a process; other
threads wait for it, or run models without a trace meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.ir.record import BEFORE_FIRST_BLOCK, BlockPlace
from poptorch_emu.trace.places.source_line import user_source
from poptorch_emu.troubleshooting import Topic
from poptorch_emu.turns import TurnLock

Resolver = Callable[[str, "int | None"], BlockPlace]


@dataclass
class _Trace:
    resolve: Resolver
    current: BlockPlace | None = BEFORE_FIRST_BLOCK
    auto_id: int = 0
    history: list[BlockPlace] = field(default_factory=list)


class _OfThread(threading.local):
    """The trace that a thread runs; other threads run models without one meanwhile."""

    active: _Trace | None = None


_of_thread = _OfThread()
_one_at_a_time = TurnLock()


@contextmanager
def tracing(resolve: Resolver) -> Iterator[None]:
    """Makes annotations count while a model is traced; `resolve` gives a block its place."""
    with _one_at_a_time:
        check_not_tracing()
        _of_thread.active = _Trace(resolve)
        try:
            yield
        finally:
            _of_thread.active = None


def check_not_tracing() -> None:
    """Checks that this thread is not tracing a model. Other threads wait for each other instead.

    Raises:
        Error: the forward that is being traced calls a wrapped model.
    """
    if _of_thread.active is not None:
        raise compiler_error(
            f"A model is being traced already, and its forward calls a wrapped model at "
            f"{user_source()}. Call the user's module instead (the attribute `model` of the "
            "wrapper), or wrap only the outer one."
        )


@contextmanager
def paused() -> Iterator[None]:
    """Makes annotations and operations behave as outside a trace, for code of the host."""
    active, _of_thread.active = _of_thread.active, None
    try:
        yield
    finally:
        _of_thread.active = active


def is_tracing() -> bool:
    """Returns whether a model's `forward` is being traced now (exact)."""
    return _of_thread.active is not None


def begin_block(user_id: str, ipu_id: int | None) -> None:
    """Opens the block that all following operations belong to; outside a trace, does nothing."""
    if _of_thread.active is not None:
        _of_thread.active.current = _of_thread.active.resolve(user_id, ipu_id)
        _of_thread.active.history.append(_of_thread.active.current)


def end_block() -> None:
    """Closes the open block; an operation before the next one opens is an error."""
    if _of_thread.active is not None:
        _of_thread.active.current = None


def current_block(operation: str = "", module: str = "") -> BlockPlace:
    """Returns the place of an operation that is recorded now.

    Args:
        operation: name of the operation for the error; "" for a constant.
        module: name of the module whose `forward` runs the operation; "" for the model itself.

    Raises:
        Error: a block has ended and no other has begun.
    """
    assert _of_thread.active is not None, "current_block is asked only during a trace"
    if _of_thread.active.current is None:
        last = _of_thread.active.history[-1].block_id if _of_thread.active.history else ""
        what = f"operation {operation}" if operation else "a constant"
        where = f"module {module!r}" if module else "the model"
        raise compiler_error(
            "No active Block, all the ops must belong to a Block: "
            f"{what} of {where} at {user_source()} was met after block '{last}' had ended. Move it "
            f"into a block, or start one with poptorch.BeginBlock; {Topic.NO_BLOCK}"
        )
    return _of_thread.active.current


class BlockStart:
    """A hook of a module that begins a block.

    Attributes:
        user_id: id of the block; None before the first trace if it is automatic.
    """

    user_id: str | int | None


def started_blocks(model: torch.nn.Module) -> set[str]:
    """Returns the ids of the blocks that hooks of modules begin."""
    found: set[str] = set()
    for inner in model.modules():
        hooks: Iterable[object] = inner._forward_pre_hooks.values()
        found |= {str(hook.user_id) for hook in hooks if isinstance(hook, BlockStart)}
    return found


def next_auto_id() -> str:
    """Returns the next automatic block id: "0", "1", ..."""
    if _of_thread.active is None:
        return "0"
    _of_thread.active.auto_id += 1
    return str(_of_thread.active.auto_id - 1)


def reset_auto_id() -> None:
    """Starts automatic block ids at "0" again."""
    if _of_thread.active is not None:
        _of_thread.active.auto_id = 0
