"""Finds the Python numbers, texts, flags and iterators in a model, and puts numbers back later.

A function's search also finds tensors, by their identities, and states that have no location: those
of random generators and the elements of arrays.
"""

from __future__ import annotations

import operator
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from numbers import Number
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch

from poptorch_emu.object_parts import attributes_of
from poptorch_emu.trace.model_state import iterators
from poptorch_emu.trace.model_state.inner_states import InnerState, inner_state
from poptorch_emu.trace.model_state.watched_numbers import plain
from poptorch_emu.trace.places.holders import Location
from poptorch_emu.trace.places.source_line import is_users_file

_CONTAINERS = (dict, list, set, deque)
_OF_TORCH = frozenset(vars(torch.nn.Module()))  # Attributes of every module.
# Longer containers are data and no state of a model.
_MAX_ITEMS = 1000
# Largest depth of nested containers and objects in the search, because an attribute may lead to a
# whole program.
_MAX_DEPTH = 3

# Returns the parts of an object of a library as (name, holder, content), see `_Search.visit`.
PartsOf = Callable[[Any], Iterable[tuple[str, Any, Mapping[Any, Any]]]]


class _Missing:
    """Stands for the value of a location that does not exist."""

    def __repr__(self) -> str:
        return "nothing"


_MISSING = _Missing()


@dataclass(frozen=True)
class Change:
    """A number that has changed.

    Attributes:
        location: location of the number, with the new value.
        before: value before.
    """

    location: Location
    before: Any

    def __str__(self) -> str:
        return f"{self.location.path} (from {self.before!r} to {self.location.value!r})"


@dataclass
class Values:
    """The numbers in a model.

    Attributes:
        locations: locations of the numbers by their paths.
        containers: containers around them, with copies of their contents.
        iterators: positions of the iterators in the model, by their paths.
        inner_states: states inside of other objects, by their paths; of functions only.
        objects: objects of libraries that hold variables, by their ids; of functions only.
        instances: the user's objects with the names of their attributes; of functions only.
    """

    locations: dict[str, Location] = field(default_factory=dict)
    containers: list[tuple[Any, dict[Any, Any]]] = field(default_factory=list)
    iterators: dict[str, object] = field(default_factory=dict)
    inner_states: dict[str, InnerState] = field(default_factory=dict)
    objects: dict[int, Any] = field(default_factory=dict)
    instances: list[tuple[Any, set[str]]] = field(default_factory=list)

    def changes_since(self, before: Values) -> list[Change]:
        """Returns the locations whose values differ, the new ones, and those that have gone."""
        olds = ((location, before.locations.get(path)) for path, location in self.locations.items())
        changes = [
            Change(location, _MISSING if old is None else old.value)
            for location, old in olds
            if old is None or _differ(location.value, old.value)
        ]
        gone = (old for path, old in before.locations.items() if path not in self.locations)
        return changes + [
            Change(replace(old, value=_MISSING), old.value)
            for old in gone
            if _value_at(old) is _MISSING
        ]

    def advanced_since(self, before: Values) -> list[str]:
        """Returns the paths of the iterators that have another position."""
        found = self.iterators.items()
        return [path for path, now in found if before.iterators.get(path, now) != now]

    def inner_changes_since(self, before: Values) -> list[tuple[str, InnerState]]:
        """Returns the paths of the objects whose inner state has changed, with that state."""
        found = self.inner_states.items()
        return [(path, now) for path, now in found if now.differs(before.inner_states.get(path))]

    def restore(self, apart: Collection[str] = ()) -> None:
        """Puts the values into their locations again, except local variables of these names."""
        for instance, names in self.instances:
            for name in vars(instance).keys() - names:
                del vars(instance)[name]
        for state in self.inner_states.values():
            state.restore()
        for container, content in self.containers:
            _restore(container, content)
        restored = {id(container) for container, _ in self.containers}
        for location in self.locations.values():
            is_apart = isinstance(location.holder, CellType) and location.key in apart
            is_put = is_apart or id(location.holder) in restored
            if not is_put and _value_at(location) is not location.value:
                location.put(location.value)


def values_in(model: torch.nn.Module) -> Values:
    """Returns the numbers that a model, its objects and the functions and globals of its files
    hold."""
    search = _Search()
    for name, module in model.named_modules():
        held = {key: value for key, value in vars(module).items() if key not in _OF_TORCH}
        search.visit(name, module, held, _MAX_DEPTH)
    for cls in {cls: None for module in model.modules() for cls in type(module).__mro__}:
        if _is_users(cls.__module__):
            search.visit(cls.__qualname__, cls, vars(cls), 2)
            search.visit_globals(cls.__module__)
    return search.values


def values_used_by(named: Mapping[str, Any], parts_of: PartsOf) -> Values:
    """Returns the numbers in objects, and in the closures and globals that their functions use.

    Args:
        named: objects by name, for example a function and its arguments.
        parts_of: returns the parts of objects of libraries; of others, none.
    """
    search = _Search(parts_of)
    search.visit("", named, named, _MAX_DEPTH)
    return search.values


class _Search:
    """A search for numbers in the objects, containers and functions of the user."""

    def __init__(self, parts_of: PartsOf | None = None) -> None:
        """Prepares a search, which also follows the code of functions if it gets `parts_of`."""
        self.values = Values()
        self._parts_of = parts_of
        self._seen: dict[int, Any] = {}  # Keeps objects, so that no other gets the same identity.

    def visit(self, path: str, holder: Any, held: Mapping[Any, Any], depth: int) -> None:
        """Notes the numbers that an object holds, and those in the objects in it.

        Args:
            path: expression that a user would write for the object.
            holder: the object.
            held: its content by attribute, key or index.
            depth: depth of the search below this object.
        """
        for key, value in held.items():
            inner, number = _name(path, holder, key), plain(value)
            is_hidden = isinstance(key, str) and key.startswith("__")
            if (is_plain(number) or self._is_tensor(value)) and not is_hidden:
                self.values.locations[inner] = Location(holder, key, number, inner)
            elif iterators.is_followed(value):
                self.values.iterators[inner] = iterators.position(value)
            elif depth and id(value) not in self._seen:
                self._visit_object(inner, value, depth - 1)

    def visit_globals(self, name: str) -> None:
        """Notes the numbers among the globals of a module of Python."""
        module = sys.modules.get(name)
        if _is_users(name) and module is not None and id(module) not in self._seen:
            self._seen[id(module)] = module
            self.visit(name, vars(module), vars(module), 0)

    def _is_tensor(self, value: Any) -> bool:
        """Returns whether a value is a tensor whose identity is noted."""
        kind = type(value)
        is_tensor = hasattr(kind, "dtype") and hasattr(kind, "shape")
        is_changed_in_place = hasattr(kind, "assign") or isinstance(value, np.ndarray)
        return self._parts_of is not None and is_tensor and not is_changed_in_place

    def _visit_object(self, path: str, value: Any, depth: int) -> None:
        if self._parts_of is not None:
            self._follow(path, value, depth, self._parts_of)
        if isinstance(value, (torch.nn.Module, torch.Tensor, type)):
            return
        self._seen[id(value)] = value
        if isinstance(value, _CONTAINERS):
            if len(value) <= _MAX_ITEMS:
                content = _content(value)
                self.values.containers.append((value, content))
                self.visit(path, value, content, depth)
        elif isinstance(value, MethodType):
            self._visit_object(path, value.__func__, depth)
        elif isinstance(value, FunctionType):
            self._visit_function(path, value, depth)
        elif self._is_users(type(value)):
            if self._parts_of is not None and hasattr(value, "__dict__"):
                self.values.instances.append((value, set(vars(value))))
            self.visit(path, value, attributes_of(value), depth)

    def _is_users(self, value: Any) -> bool:
        """Returns whether a class or function is the user's; in a function's search, an own one."""
        if self._parts_of is None:
            return _is_users(value.__module__)
        return is_own_module(value.__module__)

    def _follow(self, path: str, value: Any, depth: int, parts_of: PartsOf) -> None:
        """Visits what a function uses, the classes of objects, and the parts of libraries' ones."""
        self._seen[id(value)] = value
        if (state := inner_state(value)) is not None:
            self.values.inner_states[path] = state
        if isinstance(value, FunctionType) and is_own_module(value.__globals__.get("__name__")):
            scope = value.__globals__
            used = {name: scope[name] for name in _names_in(value.__code__) if name in scope}
            self.visit(str(value.__module__), scope, used, _MAX_DEPTH)
        for cls in value.__mro__ if isinstance(value, type) else (type(value),):
            if is_own_module(cls.__module__) and (cls is value or id(cls) not in self._seen):
                self._seen[id(cls)] = cls
                self.visit(cls.__qualname__, cls, vars(cls), depth)
        if hasattr(type(value), "variables") or hasattr(type(value), "assign"):
            self.values.objects[id(value)] = value
        for name, holder, held in parts_of(value):
            self.visit(".".join(filter(None, (path, name))), holder, held, _MAX_DEPTH)

    def _visit_function(self, path: str, function: FunctionType, depth: int) -> None:
        if self._parts_of is None:
            self.visit_globals(function.__module__)
        elif not self._is_users(function):
            return
        else:
            depth = _MAX_DEPTH
        self.visit(path, function, vars(function), depth)
        names = function.__code__.co_freevars
        for name, cell in zip(names, function.__closure__ or (), strict=True):
            if id(cell) not in self._seen:
                self._seen[id(cell)] = cell
                value = _value_at(Location(cell, name, None, name))
                self.visit(function.__qualname__, cell, {name: value}, depth)


def is_plain(value: Any) -> bool:
    """Returns whether a value is a number, a text, a flag or `None`."""
    return isinstance(value, (str, type(None), Number))


def _differ(one: Any, other: Any) -> bool:
    """Returns whether two values differ; tensors are compared by their identities."""
    return one is not other and not (is_plain(one) and is_plain(other) and one == other)


def _names_in(code: CodeType) -> Iterator[str]:
    """Yields the names that code uses, those of the functions inside of it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _is_users(module: str) -> bool:
    file = getattr(sys.modules.get(module), "__file__", None)
    return module == "__main__" if file is None else is_users_file(file)


def is_own_module(module: Any) -> bool:
    """Returns whether a module is a part of the program, and not of an installed library."""
    file = str(getattr(sys.modules.get(module), "__file__", ""))
    return _is_users(module) and not any(f"{kind}-packages" in file for kind in ("site", "dist"))


def _name(path: str, holder: Any, key: Any) -> str:
    is_globals = isinstance(holder, dict) and "__name__" in holder
    if isinstance(holder, _CONTAINERS) and not is_globals:
        return f"{path}[{key!r}]"
    return f"{path}.{key}" if path else str(key)


def _value_at(location: Location) -> Any:
    holder, key = location.holder, location.key
    if isinstance(holder, dict):
        return holder.get(key, _MISSING)
    if isinstance(holder, _CONTAINERS):
        return _content(holder).get(key, _MISSING)
    if isinstance(holder, CellType):
        try:
            return holder.cell_contents
        except ValueError:  # The variable has no value yet.
            return _MISSING
    held = getattr(holder, "__dict__", {})
    return held[key] if key in held else getattr(holder, key, _MISSING)


def _content(container: Any) -> dict[Any, Any]:
    """Returns the items of a container by key, by index or, in a set, by themselves."""
    if isinstance(container, dict):
        return dict(container)
    keys = container if isinstance(container, set) else range(len(container))
    return dict(zip(keys, container, strict=True))


def _restore(container: Any, content: dict[Any, Any]) -> None:
    """Gives a container its former content, if it has another one."""
    now = _content(container)
    items, then = [*now, *now.values()], [*content, *content.values()]
    if len(items) == len(then) and all(map(operator.is_, items, then)):
        return
    if isinstance(container, dict):
        dict.clear(container)
        dict.update(container, content)
        return
    container.clear()
    (container.update if isinstance(container, set) else container.extend)(content.values())
