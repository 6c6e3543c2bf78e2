"""Tensors in nested structures: extracts them in a fixed order and puts others in their places.

Structures are lists, tuples, named tuples, dicts and objects (`object_parts.py`); parsers that the
user registered take precedence. Values that are not tensors stay in place.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from poptorch_emu.object_parts import (
    bare_copy,
    is_registered,
    made_of,
    parts_of,
    set_attributes,
)


class ICustomArgParser(ABC):
    """Defines how to find and replace the tensors in objects of a type (exact)."""

    @abstractmethod
    def yieldTensors(self, struct: Any) -> Iterator[torch.Tensor]:
        """Yields every tensor in `struct`, always in the same order."""

    @abstractmethod
    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[torch.Tensor]) -> Any:
        """Returns a copy of `original_structure` whose tensors come from `tensor_iterator`."""


_parsers: dict[type, ICustomArgParser] = {}


def register_parser(data_type: type, parser: ICustomArgParser | None) -> None:
    """Registers `parser` for `data_type`; `None` removes the parser of the type."""
    if parser is None:
        _parsers.pop(data_type, None)
    else:
        _parsers[data_type] = parser


def registered_parsers() -> dict[type, ICustomArgParser]:
    """Returns a copy of the registered parsers, in the order of registration."""
    return dict(_parsers)


def find_parser(value: object) -> ICustomArgParser | None:
    """Returns the parser for the type of `value`, or of the first type that it is an instance
    of."""
    if not _parsers:
        return None
    exact = _parsers.get(type(value))
    if exact is not None:
        return exact
    return next((p for cls, p in _parsers.items() if isinstance(value, cls)), None)


def flatten_tensors(structure: Any, canonical: Any = None) -> list[torch.Tensor]:
    """Returns every tensor in `structure`, depth first, dicts in insertion order.

    Args:
        structure: tensors in containers and objects.
        canonical: structure of equal form whose dicts and objects define the order instead.
    """
    tensors: list[torch.Tensor] = []
    _collect(structure, canonical, tensors, {})
    return tensors


def rebuild(
    structure: Any,
    tensors: Iterator[torch.Tensor],
    is_replaced: Callable[[torch.Tensor], bool] = lambda _: True,
    other: Callable[[Any], Any] = lambda value: value,
) -> Any:
    """Returns `structure` with its tensors replaced, in the order of `flatten_tensors`.

    Objects that hold tensors are copied; other objects are shared with `structure`.

    Args:
        structure: tensors in containers and objects.
        tensors: replacements of the tensors.
        is_replaced: whether a tensor is replaced; a parser decides that for its own type.
        other: function that returns the replacement of a value that is neither a tensor nor a
            structure.
    """
    return _Copy(tensors, is_replaced, other, shares=True).of(structure)


def snapshot(structure: Any) -> Any:
    """Returns a copy that later changes of `structure` do not affect; tensors are shared."""
    tensors = iter(flatten_tensors(structure))
    return _Copy(tensors, lambda _: True, _own, shares=False).of(structure)


def _own(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


class _Copy:
    """One copy of a structure. An object that occurs twice in it is copied once."""

    def __init__(
        self,
        tensors: Iterator[torch.Tensor],
        is_replaced: Callable[[torch.Tensor], bool],
        other: Callable[[Any], Any],
        shares: bool,
    ) -> None:
        """Stores the arguments of `rebuild`, and whether objects without tensors are shared."""
        self._tensors, self._is_replaced, self._other = tensors, is_replaced, other
        self._shares = shares
        self._copies: dict[int, tuple[Any, Any]] = {}  # Keeps originals, so that ids stay valid.

    def of(self, value: Any) -> Any:
        """Returns the copy of a value."""
        parser = find_parser(value)
        if parser is not None:
            return parser.reconstruct(value, self._tensors)
        if isinstance(value, torch.Tensor):
            return next(self._tensors) if self._is_replaced(value) else value
        if isinstance(value, dict):
            return _like(value, {key: self.of(item) for key, item in value.items()})
        if isinstance(value, (list, tuple)):
            items = [self.of(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        return self._of_object(value)

    def _of_object(self, value: Any) -> Any:
        if id(value) in self._copies:
            return self._copies[id(value)][1]
        if isinstance(value, weakref.ref):
            _, target = self._copies.get(id(value()), (None, None))
            return value if target is None else weakref.ref(target)
        parts = parts_of(value)
        if parts is None or (self._shares and not holds_tensors(value)):
            return self._other(value)
        if is_registered(value):
            copy = made_of(value, [self.of(part) for part in parts.values()])
            self._copies[id(value)] = value, copy
            return copy
        copy = bare_copy(value)
        self._copies[id(value)] = value, copy  # Set before the parts, which may refer to it.
        set_attributes(copy, {name: self._of_part(part) for name, part in parts.items()})
        return copy

    def _of_part(self, value: Any) -> Any:
        """Returns the copy of an attribute."""
        is_container = isinstance(value, (dict, list, tuple))
        if is_container and self._shares and not holds_tensors(value):
            return value
        return self.of(value)


def holds_tensors(value: Any) -> bool:
    """Returns whether a structure holds a tensor; stops at the first one."""
    seen: dict[int, Any] = {}
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, torch.Tensor) or find_parser(each) is not None:
            return True
        parts = items_of(each)
        if parts is not None and id(each) not in seen:
            seen[id(each)] = each
            pending += parts.values()
    return False


def items_of(value: Any) -> Mapping[Any, Any] | None:
    """Returns the parts of a container or object by key, index or name; `None` for other values."""
    if isinstance(value, dict):
        return value
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    return parts_of(value)


class Template:
    """A structure whose tensors are replaced repeatedly.

    Attributes:
        num_tensors: number of tensors in the structure.
    """

    def __init__(self, structure: Any) -> None:
        """Analyses `structure` once."""
        self._structure = structure
        self.num_tensors = len(flatten_tensors(structure))
        is_row = type(structure) in (list, tuple)
        self._is_flat = is_row and all(isinstance(item, torch.Tensor) for item in structure)

    def filled(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Returns the structure with these tensors, in the order of `flatten_tensors`."""
        if self._is_flat and not _parsers:
            return type(self._structure)(tensors)
        return rebuild(self._structure, iter(tensors))


def _like(structure: dict[Any, Any], items: dict[Any, Any]) -> Any:
    """Returns a dict of the type of `structure`; a `defaultdict` also gets its factory."""
    if isinstance(structure, defaultdict):
        return type(structure)(structure.default_factory, items)
    return type(structure)(items)


def as_list(result: Any) -> list[Any]:
    """Returns the items of a list or tuple; any other value as the only item."""
    return list(result) if isinstance(result, (list, tuple)) else [result]


def _collect(
    structure: Any, canonical: Any, tensors: list[torch.Tensor], seen: dict[int, Any]
) -> None:
    """Appends the tensors in a structure; those of an object only where it occurs first."""
    parser = find_parser(structure)
    if parser is not None:
        tensors += parser.yieldTensors(structure)
    elif isinstance(structure, torch.Tensor):
        tensors.append(structure)
    elif isinstance(structure, dict):
        for key in structure if canonical is None else canonical:
            _collect(structure[key], None if canonical is None else canonical[key], tensors, seen)
    elif isinstance(structure, (list, tuple)):
        for index, item in enumerate(structure):
            part = None if canonical is None else canonical[index]
            _collect(item, part, tensors, seen)
    elif id(structure) not in seen and (parts := parts_of(structure)):
        seen[id(structure)] = structure
        order = None if canonical is None else parts_of(canonical)
        for key in parts if order is None else order:
            _collect(parts[key], None if order is None else order[key], tensors, seen)
