"""What reports of lines and tables share: how they are printed, and how a notebook shows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from poptorch_emu.report.terminal import (
    fitted_table,
    html_lines,
    html_table,
    terminal_width,
    wrapped,
)

# How wide a table of a notebook may be, in characters.
_NOTEBOOK_COLUMNS = 120


Self = TypeVar("Self", bound="PrintedReport")


class Table(NamedTuple):
    """Rows of a table, the first of which is its head.

    Attributes:
        rows: of the same length.
        num_left: how many columns begin at the left.
    """

    rows: Sequence[Sequence[str]]
    num_left: int


class PrintedReport:
    """A value that is printed as lines of text and tables; a class of its own says which."""

    @classmethod
    def of(cls: type[Self], value: object) -> Self:
        """Returns a report of `value`, whose fields it has."""
        return cls(**vars(value))

    def _parts(self, columns: int) -> Iterable[str | Table]:
        """Returns lines, an empty one for a gap, and tables, in order.

        Args:
            columns: how wide what cannot be wrapped should be.
        """
        raise NotImplementedError(f"{type(self).__name__} has no parts")

    def __str__(self) -> str:
        """Returns lines that fit the terminal; what is too wide for it stands below."""
        columns = terminal_width()
        lines: list[str] = []
        for part in self._parts(columns):
            if isinstance(part, Table):
                lines += fitted_table(part.rows, part.num_left, columns)
            else:
                lines += wrapped(part, columns) or [""]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Returns the same for a notebook; names of the user are text, never markup."""
        pieces: list[str] = []
        lines: list[str] = []
        for part in self._parts(_NOTEBOOK_COLUMNS):
            if isinstance(part, Table):
                pieces += [*_paragraph(lines), html_table(part.rows, part.num_left)]
                lines = []
            elif part:
                lines.append(part)
        return "".join([*pieces, *_paragraph(lines)])


def _paragraph(lines: Sequence[str]) -> list[str]:
    return [html_lines(lines)] if lines else []
