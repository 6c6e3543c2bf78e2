"""Checks that a value of JSON has the types that its reader expects, before it is used."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Bound of integers in SQLite and in the engine.
_MOST = 2**63


@dataclass(frozen=True)
class Kind:
    """A set of values that no type of Python describes.

    Attributes:
        name: name of the kind in messages.
        has: function that returns whether a value is of this kind.
    """

    name: str
    has: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    if type(value) is int:
        return -_MOST <= value < _MOST
    return type(value) is float and math.isfinite(value)


NUMBER = Kind("a finite number", _is_number)
# A non-negative number, such as a time.
AMOUNT = Kind("a finite number from 0 on", lambda value: _is_number(value) and value >= 0)
COUNT = Kind("a whole number from 0 on", lambda value: type(value) is int and 0 <= value < _MOST)


def type_fault(value: Any, expected: Any, path: str) -> str:
    """Returns a sentence that names the first value of a wrong type; "" if all types are right.

    Args:
        value: value that `json` read.
        expected: a type or a `Kind`; `None`; `(x, y)` for either; `[x]` for a list of any number
            of x; `[x, y]` for a list of exactly two; `{"name": x}` for a dictionary with these
            entries and perhaps others; `{str: x}` for a dictionary with any names.
        path: name of the value in the message.
    """
    if _is_leaf(expected):
        return "" if _has(value, expected) else _not(value, expected, path)
    if isinstance(expected, tuple):
        faults = [type_fault(value, each, path) for each in expected]
        return "" if "" in faults else max(faults, key=len)
    if isinstance(expected, list):
        return _list_fault(value, expected, path)
    return _entries_fault(value, expected, path)


def _is_leaf(expected: Any) -> bool:
    if isinstance(expected, tuple):
        return all(map(_is_leaf, expected))
    return not isinstance(expected, (list, dict))


def _has(value: Any, expected: Any) -> bool:
    if isinstance(expected, tuple):
        return any(_has(value, each) for each in expected)
    if isinstance(expected, Kind):
        return expected.has(value)
    return value is None if expected is None else type(value) is expected


def _list_fault(value: Any, expected: list[Any], path: str) -> str:
    if not isinstance(value, list) or (len(expected) > 1 and len(value) != len(expected)):
        return _not(value, expected, path)
    if len(expected) == 1 and _is_leaf(expected[0]) and all(_has(v, expected[0]) for v in value):
        return ""  # A fast path for long columns.
    kinds = expected if len(expected) > 1 else expected * len(value)
    pairs = enumerate(zip(value, kinds, strict=True))
    return next(filter(None, (type_fault(v, kind, f"{path}[{i}]") for i, (v, kind) in pairs)), "")


def _entries_fault(value: Any, expected: dict[Any, Any], path: str) -> str:
    if not isinstance(value, dict):
        return _not(value, expected, path)
    of_any_name = expected.get(str)
    if of_any_name is not None:
        entries = [(each, of_any_name, reprlib.repr(name)) for name, each in value.items()]
    else:
        missing = [name for name in expected if name not in value]
        if missing:
            return f"{path} has no {', '.join(missing)}"
        entries = [(value[name], kind, name) for name, kind in expected.items()]
    faults = (type_fault(each, kind, f"{path}.{name}") for each, kind, name in entries)
    return next(filter(None, faults), "")


def _not(value: Any, expected: Any, path: str) -> str:
    return f"{path} is {reprlib.repr(value)}, not {_name(expected)}"


def _name(expected: Any) -> str:
    if isinstance(expected, tuple):
        return " or ".join(map(_name, expected))
    if isinstance(expected, (list, dict)):
        return "a list" if isinstance(expected, list) else "an object"
    if isinstance(expected, Kind):
        return expected.name
    return "null" if expected is None else str(expected.__name__)
