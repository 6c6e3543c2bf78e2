"""Formats rows of text as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

from poptorch_emu.untrusted.texts import printable


def to_table(rows: Sequence[Sequence[str]], num_left: int) -> list[str]:
    """Returns a line for each row; the first `num_left` columns are aligned to the left."""
    rows = printable_rows(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [_line(row, widths, num_left) for row in rows]


def printable_rows(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Returns rows without control characters, because names come from the user."""
    return [[printable(text) for text in row] for row in rows]


def _line(row: Sequence[str], widths: Sequence[int], num_left: int) -> str:
    cells = [
        text.ljust(width) if index < num_left else text.rjust(width)
        for index, (text, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()
