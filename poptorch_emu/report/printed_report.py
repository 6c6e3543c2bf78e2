"""Prints reports that consist of lines and tables, and shows them in notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from poptorch_emu.printed.records import WithRecords
from poptorch_emu.printed.terminal import (
    fitted_table,
    html_lines,
    html_table,
    terminal_width,
    wrapped,
)

# Widest table in a notebook, in characters.
_NOTEBOOK_COLUMNS = 120


Self = TypeVar("Self", bound="PrintedReport")


class Table(NamedTuple):
    """Rows of a table; the first row is its head.

    Attributes:
        rows: rows of equal length.
        num_left: number of leading columns that are aligned to the left.
    """

    rows: Sequence[Sequence[str]]
    num_left: int


class Code(str):
    """Lines that are printed as they are, however long."""

    __slots__ = ()


class PrintedReport(WithRecords):
    """A value that prints as lines of text and tables, which its class provides."""

    @classmethod
    def of(cls: type[Self], value: object) -> Self:
        """Returns a report with the fields of `value`."""
        return cls(**vars(value))

    def _parts(self, columns: int) -> Iterable[str | Table]:
        """Returns lines, empty lines for gaps, and tables, in order.

        Args:
            columns: greatest width, in characters, of parts that cannot be wrapped.
        """
        raise NotImplementedError(f"{type(self).__name__} has no parts")

    def __str__(self) -> str:
        """Returns lines that fit the terminal; columns that do not fit continue below."""
        columns = terminal_width()
        lines: list[str] = []
        for part in self._parts(columns):
            if isinstance(part, Table):
                lines += fitted_table(part.rows, part.num_left, columns)
            elif isinstance(part, Code):
                lines += part.splitlines()
            else:
                lines += wrapped(part, columns) or [""]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Returns the report for a notebook; names from the user are text, never markup."""
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
