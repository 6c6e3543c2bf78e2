"""Finds the Python numbers, texts, flags and iterators in a model, and puts numbers back later."""

from __future__ import annotations

import operator
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Number
from types import CellType, FunctionType, MethodType
from typing import Any

import torch

from poptorch_emu.object_parts import attributes_of
from poptorch_emu.trace.model_state import iterators
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
    """

    locations: dict[str, Location] = field(default_factory=dict)
    containers: list[tuple[Any, dict[Any, Any]]] = field(default_factory=list)
    iterators: dict[str, object] = field(default_factory=dict)

    def changes_since(self, before: Values) -> list[Change]:
        """Returns the locations whose values differ, the new ones, and those that have gone."""
        olds = ((location, before.locations.get(path)) for path, location in self.locations.items())
        changes = [
            Change(location, _MISSING if old is None else old.value)
            for location, old in olds
            if old is None or (location.value is not old.value and location.value != old.value)
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

    def restore(self) -> None:
        """Puts the values into their locations again."""
        for container, content in self.containers:
            _restore(container, content)
        restored = {id(container) for container, _ in self.containers}
        for location in self.locations.values():
            if id(location.holder) not in restored and _value_at(location) is not location.value:
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


class _Search:
    """A search for numbers in the objects, containers and functions of the user."""

    def __init__(self) -> None:
        self.values = Values()
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
            if _is_plain(number) and not is_hidden:
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

    def _visit_object(self, path: str, value: Any, depth: int) -> None:
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
        elif _is_users(type(value).__module__):
            self.visit(path, value, attributes_of(value), depth)

    def _visit_function(self, path: str, function: FunctionType, depth: int) -> None:
        self.visit_globals(function.__module__)
        self.visit(path, function, vars(function), depth)
        names = function.__code__.co_freevars
        for name, cell in zip(names, function.__closure__ or (), strict=True):
            if id(cell) not in self._seen:
                self._seen[id(cell)] = cell
                value = _value_at(Location(cell, name, None, name))
                self.visit(function.__qualname__, cell, {name: value}, depth)


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, type(None), Number))


def _is_users(module: str) -> bool:
    file = getattr(sys.modules.get(module), "__file__", None)
    return module == "__main__" if file is None else is_users_file(file)


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
