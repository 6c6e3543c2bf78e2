"""Replaces parts of PyTorch during a trace, except for modules that are imported meanwhile.

Functions are replaced for the thread of the trace alone. Other threads call the original ones.

A module of PyTorch may be imported in the middle of a trace, by the user's `forward` or because
PyTorch needs it for an operation. Its compiler, for one, keeps the functions that it finds at its
import. So while a module of PyTorch is imported, PyTorch is as it was, and no mode is active.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FunctionType, ModuleType
from typing import Any

from poptorch_emu.torch_versions import DisableTorchDispatch, DisableTorchFunction

_INHERITED = object()


@dataclass(frozen=True)
class _Patch:
    """An attribute of a class or module of PyTorch, with its replacement."""

    owner: Any
    name: str
    replacement: Any
    original: Any

    def apply(self) -> None:
        setattr(self.owner, self.name, self.replacement)

    def undo(self) -> None:
        if self.original is _INHERITED:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.original)


_patches: list[_Patch] = []
_after_import: dict[str, list[Callable[[], object]]] = {}


@contextmanager
def patched(owner: Any, **replacements: Any) -> Iterator[None]:
    """Replaces attributes of a class or module of PyTorch, except during imports of PyTorch."""
    patches = [
        _Patch(
            owner,
            name,
            _in_this_thread(replacement, getattr(owner, name, None)),
            vars(owner).get(name, _INHERITED),
        )
        for name, replacement in replacements.items()
    ]
    with _finder():
        for patch in patches:
            patch.apply()
        _patches.extend(patches)
        try:
            yield
        finally:
            for patch in reversed(patches):
                _patches.remove(patch)
                patch.undo()


def _in_this_thread(replacement: Any, original: Any) -> Any:
    """Returns a function that is `replacement` in this thread, and `original` in others.

    Any other object is returned unchanged.
    """
    is_static = isinstance(replacement, staticmethod)
    function = replacement.__func__ if is_static else replacement
    if not isinstance(function, FunctionType):
        return replacement
    of_thread = threading.local()
    of_thread.is_patched = True

    @functools.wraps(function)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        is_patched = getattr(of_thread, "is_patched", False)
        return (function if is_patched else original)(*args, **kwargs)

    return staticmethod(chosen) if is_static else chosen


@contextmanager
def once_imported(name: str, action: Callable[[], object]) -> Iterator[None]:
    """Runs `action` once a module of PyTorch is imported: now, or later within the context."""
    if name in sys.modules:
        action()
        yield
        return
    with _finder():
        _after_import.setdefault(name, []).append(action)
        try:
            yield
        finally:
            _after_import[name].remove(action)


@contextmanager
def _as_it_was() -> Iterator[None]:
    """Undoes all patches during an import."""
    global _patches
    patches, _patches = _patches, []
    for patch in reversed(patches):
        patch.undo()
    try:
        with DisableTorchFunction(), DisableTorchDispatch():
            yield
    finally:
        for patch in patches:
            patch.apply()
        _patches = patches


class _Outside(Loader):
    """Loads a module with another loader, outside of the trace."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        with _as_it_was():
            self._loader.exec_module(module)
            for action in _after_import.get(module.__name__, ()):
                action()


class _Finder(MetaPathFinder):
    """Finds modules of PyTorch that are not imported yet, in the thread of the trace."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith("torch.") or threading.get_ident() != self._thread:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Outside(spec.loader)
        return spec


@contextmanager
def _finder() -> Iterator[None]:
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
