"""The file of a report, `profile.pop`: an SQLite database; `docs/profile_file.md` has its schema.

It holds the values of `page/view_model.py`. A file appears as a whole or not at all: it is written
under another name first, so a process that is killed leaves the file that was there before.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

FILE_NAME = "profile.pop"
SCHEMA_VERSION = 1
_MAGIC = b"SQLite format 3\0"
# Calls of a profile are blobs of some 30 KiB; pages of 4 KiB take half as much time again.
_PAGE_BYTES = 16384
# These have tables of their own, with one row for each operation or event.
_EVENT_COLUMNS = ("lane", "start", "duration", "kind", "label", "micro_batch", "bytes")
_OPERATION_COLUMNS = (
    "name",
    "operator",
    "segment",
    "block",
    "module",
    "family",
    "ipu",
    "cycles",
    "bytes",
    "utilisation",
    "is_recomputed",
    "source",
)
_SCHEMA = f"""
create table section (name text primary key, value text not null);
create table operation (number integer primary key, {", ".join(_OPERATION_COLUMNS)});
create table event (timeline text not null, number integer, {", ".join(_EVENT_COLUMNS)});
"""


def write_profile_file(path: Path, report: Mapping[str, Any]) -> None:
    """Writes a report to `path`, whose folder is made if it does not exist.

    Args:
        report: a value of `view_model.view_model`.

    Raises:
        OSError: the file cannot be written; what stood there before is still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    unfinished.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(unfinished)) as file:
            _fill(file, report)
        unfinished.replace(path)
    except sqlite3.Error as error:
        raise OSError(
            f"The report {path} cannot be written: {error}. Free space there, or choose another "
            "directory."
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)


def is_profile_file(path: Path) -> bool:
    """Returns whether `path` is a file of a database.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read_profile_file(path: Path) -> dict[str, Any]:
    """Returns the report that `write_profile_file` wrote to `path`.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no such file, is damaged, or is of another version.
    """
    if not is_profile_file(path):
        raise ValueError(
            f"{path} is no profile file: it is no SQLite database. Give a {FILE_NAME} that "
            "emulator.report or Options.enableProfiling has written."
        )
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as file:
            (version,) = file.execute("pragma user_version").fetchone()
            if version != SCHEMA_VERSION:
                raise ValueError(
                    f"{path} has version {version} of the profile file, but this package reads "
                    f"version {SCHEMA_VERSION}. Write it anew with emulator.report."
                )
            return _read(file)
    except sqlite3.Error as error:
        raise ValueError(f"{path} is no profile file or is damaged: {error}.") from error


def _fill(file: sqlite3.Connection, report: Mapping[str, Any]) -> None:
    file.execute(f"pragma page_size={_PAGE_BYTES}")
    file.execute("pragma journal_mode=memory")
    file.executescript(_SCHEMA)
    timelines = report["timelines"]
    sections = {name: value for name, value in report.items() if name != "operations"}
    sections["timelines"] = [
        {name: value for name, value in timeline.items() if name != "columns"}
        for timeline in timelines
    ]
    texts = ((name, json.dumps(value, allow_nan=False)) for name, value in sections.items())
    file.executemany("insert into section values (?, ?)", texts)
    _insert(
        file,
        "operation",
        len(_OPERATION_COLUMNS) + 1,
        _rows(report["operations"], _OPERATION_COLUMNS),
    )
    for timeline in timelines:
        rows = ((timeline["key"], *row) for row in _rows(timeline["columns"], _EVENT_COLUMNS))
        _insert(file, "event", len(_EVENT_COLUMNS) + 2, rows)
    # A pragma takes no parameters.
    file.execute(f"pragma user_version={SCHEMA_VERSION}")
    file.commit()


def _insert(
    file: sqlite3.Connection, table: str, width: int, rows: Iterator[tuple[Any, ...]]
) -> None:
    file.executemany(f"insert into {table} values ({', '.join('?' * width)})", rows)


def _rows(columns: Mapping[str, list[Any]], names: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    """Yields the number of each row, and its values."""
    if not columns:
        return
    values = zip(*(columns[name] for name in names), strict=True)
    yield from ((number, *row) for number, row in enumerate(values))


def _read(file: sqlite3.Connection) -> dict[str, Any]:
    report = {name: json.loads(text) for name, text in file.execute("select * from section")}
    for timeline in report["timelines"]:
        query = f"select {', '.join(_EVENT_COLUMNS)} from event where timeline = ? order by number"
        timeline["columns"] = _columns(_EVENT_COLUMNS, file.execute(query, (timeline["key"],)))
    query = f"select {', '.join(_OPERATION_COLUMNS)} from operation order by number"
    operations = _columns(_OPERATION_COLUMNS, file.execute(query))
    operations["is_recomputed"] = [bool(value) for value in operations["is_recomputed"]]
    report["operations"] = operations if operations["name"] else {}
    return report


def _columns(names: tuple[str, ...], rows: sqlite3.Cursor) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for row in rows:
        for name, value in zip(names, row, strict=True):
            columns[name].append(value)
    return columns
