"""Names and attributes that the user attaches to the operations recorded in a context."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class _OfThread(threading.local):
    """The open names and attributes of a thread."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.attributes: list[dict[str, dict[str, Any]]] = [{}]


_of_thread = _OfThread()


@contextmanager
def closing() -> Iterator[None]:
    """Closes, at the end of the context, whatever was opened in it."""
    num_names, num_attributes = len(_of_thread.names), len(_of_thread.attributes)
    try:
        yield
    finally:
        del _of_thread.names[num_names:], _of_thread.attributes[num_attributes:]


def open_name(name: str) -> None:
    """Makes `name` a part of the names of operations, until it is closed."""
    _of_thread.names.append(name)


def close_name() -> None:
    """Ends the innermost name."""
    _of_thread.names.pop()


def open_attributes(attributes: Mapping[str, Mapping[str, Any]]) -> None:
    """Adds to the attributes of operations; of the same name, the inner one's keys win."""
    merged = dict(_of_thread.attributes[-1])
    for name, values in attributes.items():
        merged[name] = {**merged.get(name, {}), **values}
    _of_thread.attributes.append(merged)


def close_attributes() -> None:
    """Ends the innermost attributes."""
    _of_thread.attributes.pop()


def current_name() -> str:
    """Returns the open names, outermost first, joined by slashes."""
    return "/".join(_of_thread.names)


def current_attributes() -> Mapping[str, Mapping[str, Any]]:
    """Returns the attributes of an operation recorded now."""
    return _of_thread.attributes[-1]
