"""The positions of iterators that a model holds, for example of an `itertools.count`.

An iterator that `forward` advances gives another value in each call. A capture knows neither these
values nor their effect, so a model with such an iterator is refused.
"""

from __future__ import annotations

import gc
import operator
import warnings
from collections.abc import Iterator
from types import GeneratorType
from typing import Any

_MODULES = ("builtins", "itertools")
# Depth of iterators inside of others, as in `enumerate(itertools.cycle(...))`.
_MAX_DEPTH = 4


def is_followed(value: Any) -> bool:
    """Returns whether the position of a value can be read: it is an iterator of Python itself."""
    return isinstance(value, Iterator) and type(value).__module__ in _MODULES


def position(iterator: Iterator[Any]) -> object:
    """Returns a value that differs after the iterator was advanced. The iterator stays as it is."""
    if isinstance(iterator, GeneratorType):
        frame = iterator.gi_frame
        return frame and (frame.f_lasti, _part(tuple(frame.f_locals.items()), _MAX_DEPTH))
    return _part(iterator, _MAX_DEPTH)


def _part(value: Any, depth: int) -> object:
    if isinstance(value, int | float | str) or not depth:
        return value if depth else None
    if isinstance(value, tuple):
        return [_part(each, depth) for each in value]
    if not is_followed(value):
        return None
    return operator.length_hint(value, -1), _part(_state(value), depth - 1)


def _state(iterator: Any) -> tuple[Any, ...]:
    """Returns what an iterator would be copied from or, where copies don't exist, refers to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return tuple(iterator.__reduce__()[1:])
        except TypeError:
            return tuple(gc.get_referents(iterator))
