"""Rows of text as a table for people."""

from __future__ import annotations

from collections.abc import Sequence


def to_table(rows: Sequence[Sequence[str]], num_left: int) -> list[str]:
    """Returns a line for each row; the first `num_left` columns begin at the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [_line(row, widths, num_left) for row in rows]


def _line(row: Sequence[str], widths: Sequence[int], num_left: int) -> str:
    cells = [
        text.ljust(width) if index < num_left else text.rjust(width)
        for index, (text, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()
