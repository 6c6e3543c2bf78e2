"""Functions that run around every trace of a model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from torch.utils.hooks import RemovableHandle

Hook = Callable[[], None]

_pre: OrderedDict[int, Hook] = OrderedDict()
_post: OrderedDict[int, Hook] = OrderedDict()
_substitutions: list[Callable[[], AbstractContextManager[Any]]] = []
_open_substitutions = ExitStack()


class _OverwriteContextManager:
    """Contexts around every trace that let libraries replace functions."""

    @staticmethod
    def registerSubsitutionManager(manager: Callable[[], AbstractContextManager[Any]]) -> None:
        """Enters `manager()` around the `forward` of every later trace.

        Programs rely on this spelling. A manager is only registered once.
        """
        if not callable(manager):
            raise RuntimeError(
                "A substitution manager must be a class of context managers, but it is "
                f"{manager!r}."
            )
        if manager not in _substitutions:
            _substitutions.append(manager)


def registerPreCompileHook(hook: Hook) -> RemovableHandle:
    """Calls `hook` before each trace, after the parameters have moved to the IPU (exact).

    Raises:
        RuntimeError: `hook` is not callable.
    """
    return _register(_pre, hook, "Pre-compile hook must be callable")


def registerPostCompileHook(hook: Hook) -> RemovableHandle:
    """Calls `hook` at the end of each trace, also after an error (exact).

    Raises:
        RuntimeError: `hook` is not callable.
    """
    return _register(_post, hook, "Post-compile hook must be callable")


def run_pre_compile_hooks() -> None:
    """Calls the hooks in the order of their registration, and then opens the substitutions."""
    for hook in list(_pre.values()):
        hook()
    for manager in _substitutions:
        _open_substitutions.enter_context(manager())


def run_post_compile_hooks() -> None:
    """Closes the substitutions, and then calls the hooks in the order of their registration."""
    _open_substitutions.close()
    for hook in list(_post.values()):
        hook()


def _register(hooks: OrderedDict[int, Hook], hook: Hook, complaint: str) -> RemovableHandle:
    if not callable(hook):
        raise RuntimeError(f"{complaint}, but it is of type {type(hook).__name__}.")
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle
