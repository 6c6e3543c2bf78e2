"""Dataclasses of results that are shown as tables, alone or as the members of a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar

from poptorch_emu.printed.terminal import (
    fitted_table,
    html_lines,
    html_table,
    shortened,
    terminal_width,
)

# Rows of a table that are shown; a line below it gives the number of the others.
_MOST_ROWS = 60
# Characters of a cell; of a longer text the beginning and the end are shown.
_MOST_CHARACTERS = 60


class Record:
    """Base class of dataclasses that a notebook shows as a table, with a row for each field."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Returns the fields for a notebook; names from the user are text, never markup."""
        names, texts = _rows([self])
        title = [type(self).__name__, ""]
        return html_table([title, *map(list, zip(names, texts, strict=True))], 2)


R = TypeVar("R", bound=Record)


class Records(tuple[R, ...]):
    """Records of one class, which are shown as a table with a row for each of them."""

    __slots__ = ()

    def __str__(self) -> str:
        """Returns a table that fits the terminal."""
        return "\n".join([*fitted_table(self._rows(), 1, terminal_width()), *self._left_out()])

    def _repr_html_(self) -> str:
        """Returns the same table for a notebook."""
        left_out = self._left_out()
        return html_table(self._rows(), 1) + (html_lines(left_out) if left_out else "")

    def _rows(self) -> list[list[str]]:
        return _rows(self[:_MOST_ROWS])

    def _left_out(self) -> list[str]:
        num_left = len(self) - _MOST_ROWS
        return [f"{num_left:,} more are not shown."] if num_left > 0 else []


class WithRecords:
    """Base class of dataclasses whose tuples of records are shown as tables."""

    def __post_init__(self) -> None:
        """Replaces each tuple of records by `Records`, which equals it."""
        own = vars(self)
        for name, value in own.items():
            if type(value) is tuple and value and isinstance(value[0], Record):
                own[name] = Records(value)


def _rows(records: Sequence[Record]) -> list[list[str]]:
    """Returns the names of the columns, and the cells of each record.

    Fields of a field are columns of their own, for example `seconds.compute`. Such a column is left
    out if it is zero or empty in all rows.
    """
    found = [dict(_cells(record)) for record in records]
    names = [
        name
        for name in dict.fromkeys(name for cells in found for name in cells)
        if "." not in name or any(cells.get(name, "") not in ("", "0") for cells in found)
    ]
    return [names, *([cells.get(name, "") for name in names] for cells in found)]


def _cells(record: object) -> Iterator[tuple[str, str]]:
    """Yields the name and the text of each field, and of the fields of a field."""
    for name, value in _parts(record).items():
        if _parts(value):
            yield from ((f"{name}.{key}", text) for key, text in _cells(value))
        else:
            yield name, shortened(_text(value), _MOST_CHARACTERS)


def _parts(value: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass that `repr` shows, or the items of a mapping by members."""
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value) if field.repr}
    is_by_member = isinstance(value, Mapping) and all(isinstance(key, Enum) for key in value)
    return {_text(key): item for key, item in value.items()} if is_by_member else {}


def _text(value: object) -> str:
    """Returns a value as the text of a cell."""
    if isinstance(value, Enum):
        named = value.value if isinstance(value.value, str) else value.name
        return str(getattr(value, "word", named))
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value)
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Mapping):
        value = tuple(value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(
            " ".join(map(_text, item)) if isinstance(item, tuple) else _text(item) for item in value
        )
    return str(value)
