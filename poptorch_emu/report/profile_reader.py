"""Reads profile files from unknown sources: each fault is an error that names the file."""

from __future__ import annotations

import functools
import json
import sqlite3
import statistics
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poptorch_emu.report.earlier_files import complete
from poptorch_emu.report.page.page_content import EngineRun
from poptorch_emu.report.profile_file import (
    APPENDED_TABLES,
    EVENT_COLUMNS,
    FILE_NAME,
    OPERATION_COLUMNS,
    SCHEMA_VERSION,
    SIDE_SUFFIXES,
    TABLES,
    EventRow,
    make_tables,
)
from poptorch_emu.report.report_check import ReportError, check_report, damaged, refuses_damage
from poptorch_emu.untrusted.files import open_regular

_MAGIC = b"SQLite format 3\0"
_DEFINITIONS = "select name, sql from sqlite_master where type in ('table', 'view')"
_NS_PER_SECOND = 1e9

Table = NDArray[np.int64]


def is_profile_file(path: Path) -> bool:
    """Returns whether `path` is an SQLite database.

    Raises:
        OSError: the file cannot be read, or is not a regular file.
    """
    with open_regular(path) as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read_profile_file(path: Path) -> dict[str, Any]:
    """Returns the report that `write_profile_file` wrote to `path`.

    Raises:
        OSError: the file cannot be read.
        ReportError: the file is not a profile file, is damaged, or has another version.
    """
    with _opened(path) as file:
        report = _report(file)
        complete(report)
        check_report(report, path)
        return report


def read_run(path: Path, step_seconds: float | None = None) -> EngineRun:
    """Returns the events in a profile file, which may be written to at the same time.

    Args:
        path: path of the file.
        step_seconds: duration of a call in seconds; by default the median of the calls in the file,
            from the first action to the last.

    Raises:
        OSError: the file cannot be read.
        ReportError: the file is not a profile file, is damaged, or has another version.
    """
    with _opened(path) as file:
        if not _has_calls(file):
            return EngineRun((), (), step_seconds=step_seconds)
        names = [row[0] for row in file.execute("select name from segment order by number")]
        tables = [table for _, table in _calls(file)]
        tracepoints = file.execute("select * from tracepoint order by start_ns").fetchall()
        (left_out,) = file.execute("select total(num_events) from left_out").fetchone()
        run = EngineRun(
            names,
            [EventRow(*row) for table in tables for row in table.tolist()],
            int(left_out),
            _median_seconds(tables) if step_seconds is None else step_seconds,
            tracepoints,
        )
        _check_run(run, path)
        return run


def read_calls(path: Path) -> list[tuple[int, int, int]]:
    """Returns (number, begin, end) of each call in a profile file, in nanoseconds.

    Raises:
        OSError: the file cannot be read.
        ReportError: the file is not a profile file, is damaged, or has another version.
    """
    with _opened(path) as file:
        calls = _calls(file) if _has_calls(file) else []
        return [(n, int(t[:, -2].min()), int(t[:, -1].max())) for n, t in calls if len(t)]


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Opens a file for reading; all faults of its content become one type of error."""
    if not is_profile_file(path):
        raise ReportError(
            f"{path} is not a profile file: it is not an SQLite database. Give a {FILE_NAME} that "
            "emulator.report or Options.enableProfiling has written."
        )
    real = path.resolve()
    for suffix in SIDE_SUFFIXES:
        with suppress(FileNotFoundError):
            open_regular(real.with_name(f"{real.name}{suffix}")).close()
    with (
        refuses_damage(path),
        closing(sqlite3.connect(f"{real.as_uri()}?mode=ro", uri=True)) as file,
    ):
        (version,) = file.execute("pragma user_version").fetchone()
        if version != SCHEMA_VERSION:
            raise ReportError(
                f"{path} has version {version} of the profile file, but this package reads "
                f"version {SCHEMA_VERSION}. Write it anew with emulator.report."
            )
        _check_tables(file, path)
        yield file


def _check_tables(file: sqlite3.Connection, path: Path) -> None:
    """Rejects tables with other definitions, because a view, for example, may compute forever."""
    found = {name.lower(): sql for name, sql in file.execute(_DEFINITIONS)}
    expected = _definitions(TABLES)
    appended = _definitions(APPENDED_TABLES)
    if not found.keys().isdisjoint(appended):
        expected = {**expected, **appended}
    for name, sql in expected.items():
        if found.get(name) != sql:
            raise damaged(path, f"its table '{name}' is {found.get(name)!r:.200}, not {sql!r}")


@functools.cache
def _definitions(tables: tuple[str, ...]) -> dict[str, str]:
    """Returns SQLite's own text of each table's definition, by name."""
    with closing(sqlite3.connect(":memory:")) as file:
        make_tables(file, tables)
        return dict(file.execute(_DEFINITIONS))


def _report(file: sqlite3.Connection) -> dict[str, Any]:
    report = {name: json.loads(text) for name, text in file.execute("select * from section")}
    for timeline in report["timelines"]:
        query = f"select {', '.join(EVENT_COLUMNS)} from event where timeline = ? order by number"
        timeline["columns"] = _columns(EVENT_COLUMNS, file.execute(query, (timeline["key"],)))
    query = f"select {', '.join(OPERATION_COLUMNS)} from operation order by number"
    operations = _columns(OPERATION_COLUMNS, file.execute(query))
    operations["is_recomputed"] = [bool(value) for value in operations["is_recomputed"]]
    report["operations"] = operations if operations["name"] else {}
    return report


def _columns(names: tuple[str, ...], rows: sqlite3.Cursor) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for row in rows:
        for name, value in zip(names, row, strict=True):
            columns[name].append(value)
    return columns


def _has_calls(file: sqlite3.Connection) -> bool:
    return any(name == "call" for name, _ in file.execute(_DEFINITIONS))


def _calls(file: sqlite3.Connection) -> list[tuple[int, Table]]:
    """Returns the number and the events of each call in the file."""
    rows = file.execute("select number, events from call order by number")
    return [(number, _table(data)) for number, data in rows]


def _table(data: bytes) -> Table:
    table = np.frombuffer(data, "<i8").astype(np.int64).reshape(-1, len(EventRow._fields))
    starts, ends = table[:, -2], table[:, -1]
    if (table < 0).any() or (starts > ends).any():
        raise ValueError("an event has a negative number, or ends before it begins")
    return table


def _median_seconds(tables: list[Table]) -> float | None:
    """Returns the median duration of the calls in seconds."""
    spans = [int(table[:, -1].max() - table[:, -2].min()) for table in tables if len(table)]
    return statistics.median(spans) / _NS_PER_SECOND if spans else None


def _check_run(run: EngineRun, path: Path) -> None:
    if any(event.segment >= len(run.segments) for event in run.events):
        raise damaged(path, "an event has an unknown segment")
    for tracepoint in run.tracepoints:
        if tuple(map(type, tracepoint)) != (str, str, int, int) or min(tracepoint[2:]) < 0:
            raise damaged(path, f"a tracepoint is {tracepoint!r}")
    if not all(isinstance(name, str) for name in run.segments):
        raise damaged(path, "a segment has no name")
