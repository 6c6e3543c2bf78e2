"""Finds values in objects that are reachable from a model's code, and replaces them there.

The search covers modules, containers, instances, classes, closures and caches. It skips libraries,
unless they took part in the trace.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from poptorch_emu.object_parts import attributes_of
from poptorch_emu.trace.places.source_line import is_users_file

_Cached = type(functools.cache(len))
_IMMUTABLE = (tuple, frozenset)
_CONTAINERS = (dict, list, set, deque, *_IMMUTABLE)
_WRAPPERS = (MethodType, functools.partial, functools.cached_property, property, staticmethod)
_OTHERS = (*_CONTAINERS, CellType, FunctionType, _Cached, *_WRAPPERS, classmethod, torch.nn.Module)
# Modules of Python whose classes store arbitrary values as attributes.
_KEEPERS = frozenset({"argparse", "collections", "threading", "types", "weakref"})
# Name of a root object, or a chain (link of the holder, holder, key).
_Link = Any


@dataclass(frozen=True)
class Location:
    """A location that holds a value.

    Attributes:
        key: key of a mapping, index of a sequence, or name of an attribute.
        path: expression that a user would write for the location.
    """

    holder: Any
    key: Any
    value: Any
    path: str

    def put(self, value: Any) -> None:
        """Replaces the value at this location."""
        if isinstance(self.holder, dict):
            dict.__setitem__(self.holder, self.key, value)
        elif isinstance(self.holder, (list, deque)):
            self.holder[self.key] = value
        elif isinstance(self.holder, set):
            self.holder.discard(self.key)
            self.holder.add(value)
        elif isinstance(self.holder, CellType):
            self.holder.cell_contents = value
        elif isinstance(self.holder, _Cached):
            self.holder.cache_clear()
        elif isinstance(self.holder, (type, FunctionType)):
            setattr(self.holder, self.key, value)
        elif not isinstance(self.holder, _WRAPPERS):
            object.__setattr__(self.holder, self.key, value)

    def take(self) -> None:
        """Removes the value, because its predecessor is unknown."""
        if isinstance(self.holder, OrderedDict):
            OrderedDict.__delitem__(self.holder, self.key)
        elif isinstance(self.holder, (dict, list, deque)):
            del self.holder[self.key]
        elif isinstance(self.holder, set):
            self.holder.discard(self.key)
        else:
            self.put(None)


class Search:
    """A search for values in objects."""

    def __init__(self, is_wanted: Callable[[Any], bool], files: Collection[str]) -> None:
        """Prepares a search.

        Args:
            is_wanted: returns whether the search looks for a value that is no container.
            files: files of libraries that the search covers.
        """
        self._is_wanted = is_wanted
        self._files = files
        self._seen: dict[int, Any] = {}
        self._pending = deque[tuple[_Link, Any]]()

    def run(self, roots: Iterable[tuple[str, Any]]) -> Iterator[Location]:
        """Yields the locations of wanted values; for one in a tuple, the location of the tuple.

        Args:
            roots: names and objects to begin with.
        """
        for name, root in roots:
            self._add(name, root)
        while self._pending:
            link, holder = self._pending.popleft()
            for key, value in contents_of(holder):
                if not (gc.is_tracked(value) or self._is_wanted(value)):
                    continue
                if not isinstance(holder, _IMMUTABLE) and self.has_wanted(value):
                    yield Location(holder, key, value, _path((link, holder, key)))
                if self._is_followed(value):
                    self._add((link, holder, key), value)

    def has_wanted(self, value: Any) -> bool:
        """Returns whether a value is wanted, or is immutable and holds a wanted value."""
        if isinstance(value, _IMMUTABLE):
            return any(map(self.has_wanted, value))
        return self._is_wanted(value)

    def _add(self, link: _Link, value: Any) -> None:
        if id(value) not in self._seen:
            self._seen[id(value)] = value
            self._pending.append((link, value))
            if isinstance(value, FunctionType) and self._is_of_user(value.__module__):
                self._add(value.__module__, value.__globals__)

    def _is_followed(self, value: Any) -> bool:
        kind = type(value)  # `isinstance` would load lazy objects.
        if issubclass(kind, _OTHERS):
            return True
        if issubclass(kind, (ModuleType, torch.Tensor)):
            return False
        cls = value if issubclass(kind, type) else kind
        return cls.__module__ in _KEEPERS or self._is_of_user(cls.__module__)

    def _is_of_user(self, module: str | None) -> bool:
        """Returns whether a module is the user's, or belongs to a library that took part."""
        file = getattr(sys.modules.get(module or ""), "__file__", None)
        if file is None:
            return module == "__main__"
        return is_users_file(file) and ("site-packages" not in file or file in self._files)


def contents_of(holder: Any) -> Iterator[tuple[Any, Any]]:
    """Yields keys and values that an object holds."""
    if isinstance(holder, dict):
        yield from list(dict.items(holder))
    elif isinstance(holder, (list, tuple, deque)):
        yield from enumerate(list(holder))
    elif isinstance(holder, (set, frozenset)):
        yield from [(value, value) for value in holder]
    elif isinstance(holder, FunctionType):
        yield from zip(holder.__code__.co_freevars, holder.__closure__ or (), strict=True)
        yield from (("__defaults__", holder.__defaults__), ("__dict__", vars(holder)))
        yield ("__kwdefaults__", holder.__kwdefaults__)
    elif isinstance(holder, (CellType, _Cached, *_WRAPPERS, classmethod)):
        yield from enumerate(gc.get_referents(holder))
    else:
        yield from _attributes(holder).items()


def _attributes(holder: Any) -> dict[str, Any]:
    """Returns the own attributes of an instance or class, including slots."""
    return dict(vars(holder)) if isinstance(holder, type) else attributes_of(holder)


def _path(link: _Link) -> str:
    """Returns the expression that a user would write for the end of a chain."""
    if isinstance(link, str):
        return link
    before, holder, key = link
    path = _path(before)
    if isinstance(holder, (CellType, _Cached, *_WRAPPERS, classmethod)):
        return path
    if isinstance(holder, _CONTAINERS) and not isinstance(holder, dict):
        return f"{path}[{key}]" if isinstance(key, int) else path
    if isinstance(holder, dict) and not isinstance(key, str):
        return f"{path}[...]"
    if isinstance(holder, dict) and not path.endswith("__dict__") and path not in sys.modules:
        return f"{path}[{key!r}]"
    return f"{path}.{key}" if path else key
