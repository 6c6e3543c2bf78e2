"""One operation, its arguments, and its way to compute several micro-batches at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import fx

from poptorch_emu.engine.joining.row_layout import RowLayout
from poptorch_emu.ir.arguments import arguments_of


class NotByRowsError(Exception):
    """Signals that an operation mixes rows, or that no rule says it computes row by row."""


class Form(Enum):
    """Form of a value whose rows have no layout in one tensor.

    Attributes:
        SHARED: one value that is the same for all micro-batches.
        PIECES: one value for each micro-batch, not joined yet.
        SUM: sum of the values of all micro-batches.
    """

    SHARED = "shared"
    PIECES = "pieces"
    SUM = "sum"


Result = RowLayout | Form


@dataclass(frozen=True)
class Joined:
    """Arguments and results of an operation that computes all micro-batches at once.

    Attributes:
        layouts: place of the rows of each argument, by name; other arguments are shared.
        results: place of the rows of each result, or `SUM`, or `PIECES` if a result is neither.
        changes: new values of arguments that differ from those for one micro-batch, by name.
    """

    layouts: Mapping[str, RowLayout]
    results: tuple[Result, ...]
    changes: Mapping[str, Any] = field(default_factory=dict)


class Call:
    """An operation of one micro-batch, with the forms of its arguments."""

    def __init__(self, node: fx.Node, count: int, form_of: Callable[[fx.Node], Result]) -> None:
        """Stores an operation, the number of micro-batches and the function for a node's form."""
        self.node, self.count = node, count
        self._form_of = form_of
        self.arguments = arguments_of(node)

    def nodes(self, name: str) -> list[fx.Node]:
        """Returns the tensors of an argument, which may be a list."""
        given = getattr(self.arguments, name)
        values = given if isinstance(given, (list, tuple)) else [given]
        return [value for value in values if isinstance(value, fx.Node)]

    def shape(self, name: str) -> Sequence[int]:
        """Returns the shape of an argument's tensor, or of the first one of a list."""
        shape: Sequence[int] = self.nodes(name)[0].meta["val"].shape
        return shape

    def is_shared(self, name: str) -> bool:
        """Returns whether all tensors of an argument are shared."""
        return all(self._form_of(node) is Form.SHARED for node in self.nodes(name))

    def form(self, name: str) -> Result:
        """Returns the layout or the form of an argument that is a single tensor."""
        (node,) = self.nodes(name)
        return self._form_of(node)

    def fits(self, name: str, layout: RowLayout) -> bool:
        """Returns whether an argument's rows are in a layout, or can be joined there."""
        form, shape = self.form(name), self.shape(name)
        is_possible = 0 <= layout.dim < len(shape) and shape[layout.dim] % layout.outer == 0
        return is_possible and (form == layout or isinstance(form, Form))

    def layout(self, *names: str) -> RowLayout:
        """Returns the common place of the rows of these arguments.

        Arguments without a layout take the place of the others, or else the first dimension.

        Raises:
            NotByRowsError: the arguments have different layouts, or only shared values.
        """
        forms = {self._form_of(node) for name in names for node in self.nodes(name)}
        layouts = {form for form in forms if isinstance(form, RowLayout)}
        if len(layouts) == 1:
            return layouts.pop()
        if layouts or Form.PIECES not in forms or not all(len(self.shape(n)) > 0 for n in names):
            raise NotByRowsError
        return RowLayout(0)

    def along(self, dim: int, name: str = "self") -> int:
        """Returns a dimension of an argument as an index that is not negative."""
        return dim % max(len(self.shape(name)), 1)

    @property
    def out(self) -> Sequence[int]:
        """The shape of the first result."""
        shape: Sequence[int] = self.results[0].shape
        return shape

    @property
    def results(self) -> Sequence[Any]:
        """Tensors with the metadata of the results; `None` for a result that is not computed."""
        value = self.node.meta["val"]
        return [value] if isinstance(value, torch.Tensor) else value

    @property
    def num_results(self) -> int:
        """Number of results."""
        return len(self.results)


Rule = Callable[[Call], Joined]


def require(condition: bool) -> None:
    """Rejects an operation unless `condition` is true.

    Raises:
        NotByRowsError: the condition is false.
    """
    if not condition:
        raise NotByRowsError
