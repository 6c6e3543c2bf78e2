"""Values that a search finds in reachable objects, with their names, and values that it skips."""

from __future__ import annotations

import functools
from collections import OrderedDict, deque
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from poptorch_emu.trace.places.holders import Search


class Wanted:
    """Class of the values that the tests search."""


class Pair(NamedTuple):
    first: Any
    second: int


class Holder:
    __slots__ = ("slot",)
    of_class: Any = None


def closure() -> tuple[Any, Any]:
    value = Wanted()

    def function() -> Any:
        return value

    return function, value


def found(root: Any) -> dict[str, Any]:
    search = Search(lambda value: isinstance(value, Wanted), ())
    return {place.path: place for place in search.run([("model", root)])}


def slotted(value: Any) -> Holder:
    holder = Holder()
    holder.slot = value
    return holder


@functools.lru_cache(maxsize=3)
def cached(number: int) -> Wanted:
    return Wanted()


PATHS = {
    "model['a']": lambda value: {"a": value},
    "model[1]": lambda value: [0, value],
    "model[0]": lambda value: deque([value]),
    "model['a'][0]['b']": lambda value: {"a": [OrderedDict(b=value)]},
    "model.a": lambda value: SimpleNamespace(a=value),
    "model.slot": slotted,
    "model['pair']": lambda value: {"pair": Pair((value,), 1)},
}


@pytest.mark.parametrize("path", PATHS)
def test_value_when_held_then_is_found_replaced_and_taken(path: str) -> None:
    root = PATHS[path](Wanted())
    (place,) = found(root).values()
    assert place.path == path
    place.put("new")
    assert not found(root)
    place.put(Wanted())
    place.take()
    assert not found(root)


def test_closure_default_class_and_cache_then_are_searched() -> None:
    function, value = closure()
    (place,) = found({"f": function}).values()
    assert place.value is value
    place.put(None)
    assert function() is None
    function.__defaults__ = ({"k": Wanted()},)
    assert list(found(function)) == ["model.__defaults__[0]['k']"]
    Holder.of_class = Wanted()
    (place,) = found([Holder]).values()
    place.put(None)
    assert Holder.of_class is None
    cached(1)
    next(iter(found([cached]).values())).put(None)
    assert cached.cache_info().currsize == 0


def test_objects_of_libraries_and_circles_then_do_not_matter() -> None:
    circle: list[Any] = [pytest, functools, "text", 3]
    circle.append(circle)
    assert not found(circle)
