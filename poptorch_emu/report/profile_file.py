"""The file of a report, `profile.pop`: an SQLite database; `docs/profile_file.md` has its schema.

The database holds the values of `page/view_model.py`. A file appears as a whole or not at all,
because it is written under another name first. So a process that is killed leaves the previous file
unchanged.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

FILE_NAME = "profile.pop"
SCHEMA_VERSION = 1
# Suffixes of the files that SQLite writes beside a database and reads together with it.
SIDE_SUFFIXES = ("-wal", "-shm", "-journal")
# A call takes about 30 KiB as a blob, and with pages of 4 KiB it takes 1.5 times as long to write.
_PAGE_BYTES = 16384
# Values with tables of their own, with one row for each operation or event.
EVENT_COLUMNS = ("lane", "start", "duration", "kind", "label", "micro_batch", "bytes")
OPERATION_COLUMNS = (
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
TABLES = (
    "section (name text primary key, value text not null)",
    f"operation (number integer primary key, {', '.join(OPERATION_COLUMNS)})",
    f"event (timeline text not null, number integer, {', '.join(EVENT_COLUMNS)})",
)
# Tables that are added with the first call of a model that runs.
APPENDED_TABLES = (
    "segment (number integer primary key, name text not null)",
    "call (number integer primary key, num_events integer not null, events blob not null)",
    "left_out (segment integer primary key, num_events integer not null, "
    "total_ns integer not null)",
    "tracepoint (channel text not null, name text not null, start_ns integer not null, "
    "end_ns integer not null)",
)


class EventRow(NamedTuple):
    """One action that ran, as a row of a call's events; times are those of the steady clock."""

    replica: int
    ipu: int
    segment: int
    window: int
    micro_batch: int
    worker: int
    start_ns: int
    end_ns: int


def write_profile_file(path: Path, report: Mapping[str, Any]) -> None:
    """Writes a report to `path`; creates its folder if needed.

    Args:
        report: value of `view_model.view_model`.

    Raises:
        OSError: the file cannot be written; a previous file is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(12)}.unfinished")
    try:
        with closing(sqlite3.connect(unfinished)) as file:
            _fill(file, report)
        # SQLite would replay side files that a killed process left into the new file.
        for suffix in SIDE_SUFFIXES:
            path.with_name(f"{path.name}{suffix}").unlink(missing_ok=True)
        unfinished.replace(path)
    except sqlite3.Error as error:
        raise OSError(
            f"The report {path} cannot be written: {error}. Free space there, or choose another "
            "directory."
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)


def _fill(file: sqlite3.Connection, report: Mapping[str, Any]) -> None:
    file.execute(f"pragma page_size={_PAGE_BYTES}")
    file.execute("pragma journal_mode=memory")
    make_tables(file, TABLES)
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
        len(OPERATION_COLUMNS) + 1,
        _rows(report["operations"], OPERATION_COLUMNS),
    )
    for timeline in timelines:
        rows = ((timeline["key"], *row) for row in _rows(timeline["columns"], EVENT_COLUMNS))
        _insert(file, "event", len(EVENT_COLUMNS) + 2, rows)
    # SQLite accepts no parameters in a pragma.
    file.execute(f"pragma user_version={SCHEMA_VERSION}")
    file.commit()


def make_tables(file: sqlite3.Connection, tables: Iterable[str]) -> None:
    """Creates the tables that do not exist yet."""
    for table in tables:
        file.execute(f"create table if not exists {table}")


def _insert(
    file: sqlite3.Connection, table: str, width: int, rows: Iterator[tuple[Any, ...]]
) -> None:
    file.executemany(f"insert into {table} values ({', '.join('?' * width)})", rows)


def _rows(columns: Mapping[str, list[Any]], names: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    """Yields each row with its number first."""
    if not columns:
        return
    values = zip(*(columns[name] for name in names), strict=True)
    yield from ((number, *map(_storable, row)) for number, row in enumerate(values))


def _storable(value: Any) -> Any:
    """Returns a value that SQLite accepts: invalid file names contain lone surrogates."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
