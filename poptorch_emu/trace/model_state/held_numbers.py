"""Numbers that `forward` changes in Python, for example `self.step += 1`.

A model is captured once, so that each call would compute with the numbers of the first one. If
`forward` changed a number, the model is captured a second time, as in a second call. Where the
second capture computes the same, the number decides nothing.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.object_parts import attributes_of
from poptorch_emu.trace.places.holders import Place
from poptorch_emu.trace.places.source_line import is_users_file
from poptorch_emu.troubleshooting import Topic

_PLAIN = (int, float, bool, str, type(None))
_OF_TORCH = frozenset(vars(torch.nn.Module()))  # Attributes of every module.
# Longer containers are data and no state of a model.
_MAX_ITEMS = 1000
# Largest depth of nested containers and objects in the search, because an attribute may lead to a
# whole program.
_MAX_DEPTH = 3
_MAX_NAMED = 3
_MISSING = object()


@dataclass(frozen=True)
class Change:
    """A number that `forward` has changed.

    Attributes:
        place: place of the number, with the value before.
        after: value after the first capture.
    """

    place: Place
    after: Any


class HeldNumbers:
    """Numbers, texts and flags that a model, its objects and the globals of its files hold."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Notes the present values."""
        self._places = [*_places_of(model)]

    def changes(self) -> list[Change]:
        """Returns the numbers that have another value now."""
        now = ((place, _value_at(place)) for place in self._places)
        return [
            Change(place, value)
            for place, value in now
            if value is not place.value and isinstance(value, _PLAIN) and value != place.value
        ]


def check_same(changes: list[Change], capture: Callable[[], list[Any]], first: list[Any]) -> None:
    """Checks that a second call, with the changed numbers, would compute the same.

    Args:
        changes: numbers that the first capture has changed; they keep these values.
        capture: captures the model again, and returns the texts of `compared_captures.computed`.
        first: texts of the first capture.

    Raises:
        Error: the second capture computes something else.
    """
    try:
        is_same = capture() == first
    finally:
        for change in changes:
            change.place.put(change.after)
    if not is_same:
        raise _refused(changes)


def _refused(changes: list[Change]) -> Exception:
    named = [
        f"{each.place.path} (from {each.place.value!r} to {each.after!r})"
        for each in changes[:_MAX_NAMED]
    ]
    return compiler_error(
        f"forward changes {', '.join(named)}, and a second call computes something else with it. A "
        "model is captured in its first call, and later calls would repeat that one. Keep a count "
        "on the device: self.register_buffer('step', torch.zeros(1)) in __init__, self.step += 1 "
        "in forward, and torch.where(self.step < 10, a, b) for decisions. Or change it outside of "
        f"forward, and call destroy() to capture the model anew; {Topic.INTEGER_STATE}"
    )


def _places_of(model: torch.nn.Module) -> Iterator[Place]:
    seen: set[int] = set()
    for name, module in model.named_modules():
        held = {key: value for key, value in vars(module).items() if key not in _OF_TORCH}
        yield from _places_in(name, module, held, seen, _MAX_DEPTH)
    for cls in {cls: None for module in model.modules() for cls in type(module).__mro__}:
        module = sys.modules.get(cls.__module__)
        if _is_users(cls.__module__):
            yield from _plain(cls.__qualname__, cls, vars(cls))
            if id(module) not in seen:
                seen.add(id(module))
                yield from _plain(cls.__module__, vars(module), vars(module))


def _places_in(
    path: str, holder: Any, held: Mapping[Any, Any], seen: set[int], depth: int
) -> Iterator[Place]:
    """Yields the places in an object, and in the containers and objects of the user in it."""
    yield from _plain(path, holder, held)
    for key, value in held.items() if depth else ():
        if id(value) in seen or isinstance(value, (torch.nn.Module, torch.Tensor, type)):
            continue
        inner = _name(path, holder, key)
        if isinstance(value, (dict, list, deque)) and len(value) <= _MAX_ITEMS:
            seen.add(id(value))
            content = value if isinstance(value, dict) else dict(enumerate(value))
            yield from _places_in(inner, value, content, seen, depth - 1)
        elif _is_users(type(value).__module__):
            seen.add(id(value))
            yield from _places_in(inner, value, attributes_of(value), seen, depth - 1)


def _plain(path: str, holder: Any, held: Mapping[Any, Any]) -> Iterator[Place]:
    for key, value in held.items():
        is_hidden = isinstance(key, str) and key.startswith("__")
        if type(value) in _PLAIN and not is_hidden:
            yield Place(holder, key, value, _name(path, holder, key))


def _name(path: str, holder: Any, key: Any) -> str:
    if isinstance(holder, (list, deque)) or (isinstance(holder, dict) and "__name__" not in holder):
        return f"{path}[{key!r}]"
    return f"{path}.{key}" if path else str(key)


def _value_at(place: Place) -> Any:
    holder, key = place.holder, place.key
    if isinstance(holder, dict):
        return holder.get(key, _MISSING)
    if isinstance(holder, (list, deque)):
        return holder[key] if key < len(holder) else _MISSING
    held = getattr(holder, "__dict__", {})
    return held[key] if key in held else getattr(holder, key, _MISSING)


def _is_users(module: str) -> bool:
    file = getattr(sys.modules.get(module), "__file__", None)
    return module == "__main__" if file is None else is_users_file(file)
