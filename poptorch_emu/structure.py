"""Tensors in nested containers: taking them out in a fixed order and putting others back.

Lists, tuples, named tuples and dicts are known; other types are made known by a parser. Everything
that is not a tensor stays where it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch


class ICustomArgParser(ABC):
    """Teaches how to find and replace the tensors of a type (exact)."""

    @abstractmethod
    def yieldTensors(self, struct: Any) -> Iterator[torch.Tensor]:  # noqa: N802
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


def find_parser(value: object) -> ICustomArgParser | None:
    """Returns the parser of the exact type of `value`, or of the first type it is an instance of."""
    exact = _parsers.get(type(value))
    if exact is not None:
        return exact
    return next((p for cls, p in _parsers.items() if isinstance(value, cls)), None)


def flatten_tensors(structure: Any) -> list[torch.Tensor]:
    """Returns every tensor in `structure`, depth first, dicts in insertion order."""
    return list(_tensors(structure))


def rebuild(structure: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """Returns `structure` with its tensors replaced, in the order of `flatten_tensors`."""
    parser = find_parser(structure)
    if parser is not None:
        return parser.reconstruct(structure, tensors)
    if isinstance(structure, torch.Tensor):
        return next(tensors)
    if isinstance(structure, dict):
        return type(structure)({key: rebuild(value, tensors) for key, value in structure.items()})
    if isinstance(structure, (list, tuple)):
        items = [rebuild(item, tensors) for item in structure]
        return type(structure)(*items) if hasattr(structure, "_fields") else type(structure)(items)
    return structure


def _tensors(structure: Any) -> Iterator[torch.Tensor]:
    parser = find_parser(structure)
    if parser is not None:
        yield from parser.yieldTensors(structure)
    elif isinstance(structure, torch.Tensor):
        yield structure
    elif isinstance(structure, dict):
        for value in structure.values():
            yield from _tensors(value)
    elif isinstance(structure, (list, tuple)):
        for item in structure:
            yield from _tensors(item)
