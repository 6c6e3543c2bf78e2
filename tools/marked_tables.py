"""Tables that tools write into documents, between two comments that name the table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]


def begin(name: str) -> str:
    """Returns the comment before the table of this name."""
    return f"<!-- {name}: made by `make docs`; do not edit. -->"


def end(name: str) -> str:
    """Returns the comment after the table of this name."""
    return f"<!-- End of {name}. -->"


def with_table(document: str, name: str, table: str) -> str:
    """Returns `document` with a new table between the comments of this name.

    Raises:
        ValueError: the comments are not there.
    """
    if document.count(begin(name)) != 1 or document.count(end(name)) != 1:
        raise ValueError(
            f"The document must have one line '{begin(name)}' and one '{end(name)}' after it."
        )
    before, rest = document.split(begin(name))
    _, after = rest.split(end(name))
    return f"{before}{begin(name)}\n{table}\n{end(name)}{after}"


def with_tables(document: str, tables: Mapping[str, Callable[[], str]]) -> str:
    """Returns `document` with new tables, each made by the function of its name.

    Raises:
        ValueError: the comments of a table are not there.
    """
    for name, table in tables.items():
        document = with_table(document, name, table())
    return document


def run(path: Path, description: str, current: Callable[[str], str]) -> None:
    """Rewrites a document; with `--check` ends with exit status 1 if that would change it."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="change nothing")
    is_check = parser.parse_args().check
    present = path.read_text(encoding="utf-8")
    wanted = current(present)
    if is_check and present != wanted:
        sys.exit(f"{path.relative_to(ROOT)} is stale: run `make docs`.")
    if not is_check:
        path.write_text(wanted, encoding="utf-8")
