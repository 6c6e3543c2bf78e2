"""Functions that run around every trace of a model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from torch.utils.hooks import RemovableHandle

Hook = Callable[[], None]

_pre: OrderedDict[int, Hook] = OrderedDict()
_post: OrderedDict[int, Hook] = OrderedDict()


def registerPreCompileHook(hook: Hook) -> RemovableHandle:
    """Calls `hook` before each trace, when the parameters are on the IPU already (exact).

    Raises:
        RuntimeError: `hook` is not callable.
    """
    return _register(_pre, hook, "Pre-compile hook must be callable")


def registerPostCompileHook(hook: Hook) -> RemovableHandle:
    """Calls `hook` at the end of each trace, also of one that failed (exact).

    Raises:
        RuntimeError: `hook` is not callable.
    """
    return _register(_post, hook, "Post-compile hook must be callable")


def run_pre_compile_hooks() -> None:
    """Calls the hooks in the order in which they were registered."""
    for hook in list(_pre.values()):
        hook()


def run_post_compile_hooks() -> None:
    """Calls the hooks in the order in which they were registered."""
    for hook in list(_post.values()):
        hook()


def _register(hooks: OrderedDict[int, Hook], hook: Hook, complaint: str) -> RemovableHandle:
    if not callable(hook):
        raise RuntimeError(f"{complaint}, but it is of type {type(hook).__name__}.")
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle
