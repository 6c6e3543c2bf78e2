"""One element of a dataset as a flat list of tensors, and lists of tensors cut into rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import torch

from poptorch_emu.data.ring import TensorSpec
from poptorch_emu.structure import flatten_tensors, rebuild, registered_parsers


def tensors_of(element: Any, template: Any = None) -> list[torch.Tensor]:
    """Returns the tensors of a tensor, a flat list, tuple or dict, or a type with its own parser.

    Args:
        element: element of a dataset.
        template: template whose keys decide the order of a dict; `None` keeps the dict's own order.

    Raises:
        TypeError: something in it is not a tensor.
        ValueError: only one of `element` and `template` is a dict, or their keys differ.
    """
    if type(element) in registered_parsers():
        return flatten_tensors(element)
    items = _items(element, template)
    for index, item in enumerate(items):
        if not isinstance(item, torch.Tensor):
            raise TypeError(
                f"Tensor at index {index} is not a torch tensor ({type(item)}). The dataset must "
                "yield a tensor or a flat 1D container of tensors: return such from the dataset "
                "or its collate_fn, or register the type by poptorch.registerCustomArgParser()."
            )
    return items


def template_of(element: Any) -> Any:
    """Returns a template that lets `poptorch_emu.structure.rebuild` build elements like this one.

    It holds no data, except for types that have their own parser. A tuple becomes a list.
    """
    if type(element) in registered_parsers():
        return element
    plain = list(element) if isinstance(element, (list, tuple)) else element
    plain = dict(element) if isinstance(element, dict) else plain
    return rebuild(plain, repeat(torch.empty(0)))


def _items(element: Any, template: Any) -> list[Any]:
    if template is not None and isinstance(element, dict) != isinstance(template, dict):
        raise ValueError(
            f"An element is a {type(element).__name__}, but the first one came as a "
            f"{type(template).__name__}. All elements must be dicts with the same keys, or none."
        )
    if isinstance(element, (list, tuple)):
        return list(element)
    if not isinstance(element, dict):
        return [element]
    keys = element if template is None else template
    if element.keys() != keys.keys():
        raise ValueError(
            f"An element has the keys {list(element)}, but the first one had {list(keys)}. "
            "All elements must have the same."
        )
    return [element[key] for key in keys]


class Piece(NamedTuple):
    """Rows of one element and their first row in a slot; by default the whole element."""

    tensors: Sequence[torch.Tensor]
    first_row: int = 0
    num_rows: int | None = None


def cut_rows(elements: Iterable[Sequence[torch.Tensor]], slot_rows: int) -> Iterator[Piece]:
    """Yields the rows of all elements, cut where a slot of `slot_rows` is full.

    Raises:
        ValueError: the tensors of an element differ in their number of rows.
    """
    filled = 0
    for tensors in elements:
        rows, taken = _num_rows(tensors), 0
        while taken < rows:
            count = min(rows - taken, slot_rows - filled)
            yield Piece([tensor.narrow(0, taken, count) for tensor in tensors], filled, count)
            taken += count
            filled = (filled + count) % slot_rows


def _num_rows(tensors: Sequence[torch.Tensor]) -> int:
    counts = {tensor.shape[0] if tensor.ndim else None for tensor in tensors}
    count = counts.pop() if len(counts) == 1 else None
    if count is None:
        shapes = ", ".join(str(TensorSpec.of(tensor)) for tensor in tensors)
        raise ValueError(
            f"Cannot rebatch {shapes}: all tensors of an element must have the same size(0)."
        )
    return count
