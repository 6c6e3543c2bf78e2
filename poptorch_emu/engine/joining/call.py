"""An operation of one micro-batch, and how it does several at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import fx

from poptorch_emu.engine.joining.place import Place
from poptorch_emu.ir.arguments import arguments_of


class NotByRowsError(Exception):
    """The operation mixes rows, or is not known to go row by row."""


class Form(Enum):
    """What a value is that has no place.

    Attributes:
        SHARED: all micro-batches have the same.
        PIECES: each micro-batch has its own, and nothing joins them yet.
        SUM: what all add up to.
    """

    SHARED = "shared"
    PIECES = "pieces"
    SUM = "sum"


Result = Place | Form


@dataclass(frozen=True)
class Joined:
    """How an operation does all micro-batches at once.

    Attributes:
        places: where the rows of arguments must be; others are shared.
        results: of each result, where its rows are, or that it is a sum; `PIECES` if it is neither.
        changes: the other arguments that differ.
    """

    places: Mapping[str, Place]
    results: tuple[Result, ...]
    changes: Mapping[str, Any] = field(default_factory=dict)


class Call:
    """An operation of one micro-batch, and what is known of its arguments."""

    def __init__(self, node: fx.Node, count: int, form_of: Callable[[fx.Node], Result]) -> None:
        """Takes an operation, how many micro-batches are joined, and what its arguments are."""
        self.node, self.count = node, count
        self._form_of = form_of
        self.arguments = arguments_of(node)

    def nodes(self, name: str) -> list[fx.Node]:
        """Returns the tensors of an argument."""
        given = getattr(self.arguments, name)
        values = given if isinstance(given, (list, tuple)) else [given]
        return [value for value in values if isinstance(value, fx.Node)]

    def shape(self, name: str) -> Sequence[int]:
        """Returns the shape of the (first) tensor of an argument."""
        shape: Sequence[int] = self.nodes(name)[0].meta["val"].shape
        return shape

    def is_shared(self, name: str) -> bool:
        """Returns whether all tensors of an argument are shared."""
        return all(self._form_of(node) is Form.SHARED for node in self.nodes(name))

    def form(self, name: str) -> Result:
        """Returns what the only tensor of an argument is."""
        (node,) = self.nodes(name)
        return self._form_of(node)

    def fits(self, name: str, place: Place) -> bool:
        """Returns whether the rows of an argument are in a place, or may be put there."""
        form, shape = self.form(name), self.shape(name)
        is_possible = 0 <= place.dim < len(shape) and shape[place.dim] % place.outer == 0
        return is_possible and (form == place or isinstance(form, Form))

    def place(self, *names: str) -> Place:
        """Returns where the rows of these arguments are, which are alike.

        Those that have no place get that of the others, or the first dimension.
        """
        forms = {self._form_of(node) for name in names for node in self.nodes(name)}
        places = {form for form in forms if isinstance(form, Place)}
        if len(places) == 1:
            return places.pop()
        if places or Form.PIECES not in forms or not all(len(self.shape(n)) > 0 for n in names):
            raise NotByRowsError
        return Place(0)

    def along(self, dim: int, name: str = "self") -> int:
        """Returns the number of a dimension of an argument, counted from the front."""
        return dim % max(len(self.shape(name)), 1)

    @property
    def out(self) -> Sequence[int]:
        """The shape of the (first) result."""
        shape: Sequence[int] = self.results[0].shape
        return shape

    @property
    def results(self) -> Sequence[Any]:
        """Tensors like the results; `None` stands for one that was not asked for."""
        value = self.node.meta["val"]
        return [value] if isinstance(value, torch.Tensor) else value

    @property
    def num_results(self) -> int:
        """How many results there are."""
        return len(self.results)


Rule = Callable[[Call], Joined]


def require(condition: bool) -> None:
    """Refuses an operation of which something does not hold.

    Raises:
        NotByRowsError: it does not.
    """
    if not condition:
        raise NotByRowsError
