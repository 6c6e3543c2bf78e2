"""Text that fits a terminal, and its form for notebooks, where names are never markup."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence

from poptorch_emu.printed.text_table import printable_rows, to_table
from poptorch_emu.untrusted.texts import as_html, printable

# Columns without a terminal, and the limits for terminals that are too narrow or too wide.
_USUAL, _LEAST, _MOST = 80, 60, 160


def terminal_width() -> int:
    """Returns the number of columns for text: those of the terminal, or 80 without one."""
    return min(max(shutil.get_terminal_size((_USUAL, 24)).columns, _LEAST), _MOST)


def wrapped(text: str, columns: int) -> list[str]:
    """Returns the lines of `text` with at most `columns` characters; later lines are indented."""
    lines = textwrap.wrap(text, columns, subsequent_indent="  ")
    return [printable(line) for line in lines]


def shortened(text: str, columns: int) -> str:
    """Returns `text`, or its beginning and end if it is longer than `columns` characters."""
    if len(text) <= columns:
        return text
    num_first = (columns - 3) // 2
    return f"{text[:num_first]}...{text[num_first + 3 - columns :]}"


def fitted_table(rows: Sequence[Sequence[str]], num_left: int, columns: int) -> list[str]:
    """Returns a table whose columns continue below, after its first column, if they do not fit.

    Args:
        rows: rows of equal length.
        num_left: number of leading columns that are aligned to the left.
        columns: width of the terminal in characters.
    """
    rows = printable_rows(rows)
    lines: list[str] = []
    for chosen in _fitting(rows, columns):
        lines += ["", *to_table(_chosen(rows, chosen), num_left)]
    return lines[1:]


def _chosen(rows: Sequence[Sequence[str]], columns: Sequence[int]) -> list[list[str]]:
    return [[row[column] for column in columns] for row in rows]


def _fitting(rows: Sequence[Sequence[str]], columns: int) -> Iterator[list[int]]:
    """Yields the numbers of the columns that fit beside each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    part, used = [0], widths[0]
    for number, width in enumerate(widths[1:], start=1):
        if used + 2 + width > columns and len(part) > 1:
            yield part
            part, used = [0], widths[0]
        part.append(number)
        used += 2 + width
    yield part


def html_table(rows: Sequence[Sequence[str]], num_left: int) -> str:
    """Returns a table for a notebook; the first row is its head."""
    head, *body = rows
    lines = [_html_row(head, num_left, "th"), *(_html_row(row, num_left, "td") for row in body)]
    return f'<div style="overflow-x:auto"><table>{"".join(lines)}</table></div>'


def _html_row(row: Sequence[str], num_left: int, cell: str) -> str:
    return f"<tr>{''.join(_html_cell(text, n < num_left, cell) for n, text in enumerate(row))}</tr>"


def _html_cell(text: str, is_left: bool, cell: str) -> str:
    side = "left" if is_left else "right"
    return f'<{cell} style="text-align:{side}">{as_html(text)}</{cell}>'


def html_lines(lines: Sequence[str]) -> str:
    """Returns lines of text for a notebook."""
    text = "\n".join(as_html(line) for each in lines for line in each.splitlines() or [""])
    return f'<pre style="white-space:pre-wrap;font-family:monospace">{text}</pre>'
