"""Tensors in nested containers: taking them out in a fixed order and putting others back.

Lists, tuples, named tuples and dicts are known; other types are made known by a parser. Everything
that is not a tensor stays where it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch


class ICustomArgParser(ABC):
    """Teaches how to find and replace the tensors of a type (exact)."""

    @abstractmethod
    def yieldTensors(self, struct: Any) -> Iterator[torch.Tensor]:
        """Yields every tensor in `struct`, always in the same order."""

    @abstractmethod
    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[torch.Tensor]) -> Any:
        """Returns a copy of `original_structure` whose tensors come from `tensor_iterator`."""


_parsers: dict[type, ICustomArgParser] = {}


def register_parser(data_type: type, parser: ICustomArgParser | None) -> None:
    """Makes `parser` responsible for `data_type`; `None` forgets the type."""
    if parser is None:
        _parsers.pop(data_type, None)
    else:
        _parsers[data_type] = parser


def registered_parsers() -> dict[type, ICustomArgParser]:
    """Returns a copy of what is registered, in the order of registration."""
    return dict(_parsers)


def find_parser(value: object) -> ICustomArgParser | None:
    """Returns the parser of the type of `value`, else of the first type it is an instance of."""
    if not _parsers:
        return None
    exact = _parsers.get(type(value))
    if exact is not None:
        return exact
    return next((p for cls, p in _parsers.items() if isinstance(value, cls)), None)


def flatten_tensors(structure: Any, canonical: Any = None) -> list[torch.Tensor]:
    """Returns every tensor in `structure`, depth first, dicts in insertion order.

    Args:
        structure: tensors in containers.
        canonical: an equal structure whose dicts decide the order instead.
    """
    tensors: list[torch.Tensor] = []
    _collect(structure, canonical, tensors)
    return tensors


def rebuild(
    structure: Any,
    tensors: Iterator[torch.Tensor],
    is_replaced: Callable[[torch.Tensor], bool] = lambda _: True,
) -> Any:
    """Returns `structure` with its tensors replaced, in the order of `flatten_tensors`.

    Args:
        structure: tensors in containers.
        tensors: what comes in their places.
        is_replaced: which tensors take one; a parser decides that for its own type.
    """
    parser = find_parser(structure)
    if parser is not None:
        return parser.reconstruct(structure, tensors)
    if isinstance(structure, torch.Tensor):
        return next(tensors) if is_replaced(structure) else structure
    if isinstance(structure, dict):
        items = {key: rebuild(value, tensors, is_replaced) for key, value in structure.items()}
        return _like(structure, items)
    if isinstance(structure, (list, tuple)):
        values = [rebuild(item, tensors, is_replaced) for item in structure]
        is_named = hasattr(structure, "_fields")
        return type(structure)(*values) if is_named else type(structure)(values)
    return structure


class Template:
    """A structure whose tensors are replaced again and again.

    Attributes:
        num_tensors: how many it has.
    """

    def __init__(self, structure: Any) -> None:
        """Looks once at what `structure` is like."""
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
    """Returns a dict of the type of `structure`, which may be made from something else first."""
    if isinstance(structure, defaultdict):
        return type(structure)(structure.default_factory, items)
    return type(structure)(items)


def as_list(result: Any) -> list[Any]:
    """Returns the items of a list or tuple, and anything else as the only item."""
    return list(result) if isinstance(result, (list, tuple)) else [result]


def _collect(structure: Any, canonical: Any, tensors: list[torch.Tensor]) -> None:
    parser = find_parser(structure)
    if parser is not None:
        tensors += parser.yieldTensors(structure)
    elif isinstance(structure, torch.Tensor):
        tensors.append(structure)
    elif isinstance(structure, dict):
        for key in structure if canonical is None else canonical:
            _collect(structure[key], _part(canonical, key), tensors)
    elif isinstance(structure, (list, tuple)):
        for index, item in enumerate(structure):
            _collect(item, _part(canonical, index), tensors)


def _part(canonical: Any, key: Any) -> Any:
    return None if canonical is None else canonical[key]
