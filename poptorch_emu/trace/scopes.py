"""Names and attributes that the user attaches to the operations recorded in a context."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_names: list[str] = []
_attributes: list[dict[str, dict[str, Any]]] = [{}]


@contextmanager
def closing() -> Iterator[None]:
    """Closes at the end of the context all names and attributes that were opened in it."""
    num_names, num_attributes = len(_names), len(_attributes)
    try:
        yield
    finally:
        del _names[num_names:], _attributes[num_attributes:]


def open_name(name: str) -> None:
    """Adds `name` to the names of operations until it is closed."""
    _names.append(name)


def close_name() -> None:
    """Closes the innermost name."""
    _names.pop()


def open_attributes(attributes: Mapping[str, Mapping[str, Any]]) -> None:
    """Adds attributes to operations. For equal names, inner keys override outer ones."""
    merged = dict(_attributes[-1])
    for name, values in attributes.items():
        merged[name] = {**merged.get(name, {}), **values}
    _attributes.append(merged)


def close_attributes() -> None:
    """Closes the innermost attributes."""
    _attributes.pop()


def current_name() -> str:
    """Returns the open names, outermost first, joined by slashes."""
    return "/".join(_names)


def current_attributes() -> Mapping[str, Mapping[str, Any]]:
    """Returns the attributes of an operation that is recorded now."""
    return _attributes[-1]
