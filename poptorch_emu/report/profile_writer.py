"""Appends what the engine runs to a profile file, while the model runs; see docs/profile_file.md.

The events of a call are one row, whose bytes are those of a table of integers: a row for each event
would cost more time than small models take.
"""

from __future__ import annotations

import queue
import sqlite3
import statistics
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from poptorch_emu.log import logger
from poptorch_emu.report.page.reading import EngineRun

# How many calls are kept whole, at the beginning and at the end of a run.
KEPT_CALLS = 50
# Calls that wait for the writer; more are counted and not kept.
_MOST_WAITING = 16
_NS_PER_SECOND = 1e9
_SCHEMA = """
create table if not exists segment (number integer primary key, name text not null);
create table if not exists call (
    number integer primary key, num_events integer not null, events blob not null
);
create table if not exists left_out (
    segment integer primary key, num_events integer not null, total_ns integer not null
);
create table if not exists tracepoint (
    channel text not null, name text not null, start_ns integer not null, end_ns integer not null
);
"""

Table = NDArray[np.int64]


class EventRow(NamedTuple):
    """One action that ran; times are of the steady clock."""

    replica: int
    ipu: int
    segment: int
    window: int
    micro_batch: int
    worker: int
    start_ns: int
    end_ns: int


class ProfileWriter:
    """Appends to a file that `write_profile_file` made, from a thread of its own.

    Each call is one transaction, so that a process that is killed leaves a file that opens. What
    goes wrong with the disk ends the profile with one warning, and nothing else.
    """

    def __init__(self, path: Path, segments: Sequence[str]) -> None:
        """Opens the file at the first call.

        Args:
            path: of the file.
            segments: name of each segment of the program.
        """
        self.path = path
        self._waiting: queue.Queue[Any] = queue.Queue(_MOST_WAITING)
        self._segments = tuple(segments)
        self._num_calls = 0
        self._last: list[int] = []  # numbers of the calls that are kept of the end
        self._is_failing = False
        self._thread = threading.Thread(target=self._work, name="profile", daemon=True)
        self._thread.start()

    def add_call(self, events: Table) -> None:
        """Appends the events of a call; (events, 8) integers."""
        number, self._num_calls = self._num_calls, self._num_calls + 1
        try:
            self._waiting.put_nowait((self._write_call, (number, events)))
        except queue.Full:  # The disk is slower than the model.
            pass

    def add_tracepoint(self, channel: str, name: str, start_ns: int, end_ns: int) -> None:
        """Appends a stretch of time that the user named."""
        try:
            self._waiting.put_nowait((self._write_tracepoint, (channel, name, start_ns, end_ns)))
        except queue.Full:
            pass

    def run(self, step_seconds: float | None = None) -> EngineRun:
        """Returns what ran until now; waits until it is in the file."""
        if self._thread.is_alive():
            self._waiting.join()
        return read_run(self.path, step_seconds)

    def close(self) -> None:
        """Writes what is left and ends the thread."""
        if self._thread.is_alive():  # It is not in a process that was forked.
            self._waiting.put(None)
            self._thread.join()

    def _work(self) -> None:
        database: sqlite3.Connection | None = None
        is_open = True
        while is_open:
            task = self._waiting.get()
            try:
                if task is None:
                    is_open = False
                elif not self._is_failing:
                    database = database or self._begin()
                    write, arguments = task
                    with database:
                        write(database, *arguments)
            except (sqlite3.Error, OSError) as error:
                self._fail(error)
            finally:
                self._waiting.task_done()
        if database is not None:
            try:
                database.close()
            except sqlite3.Error as error:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self._is_failing:
            self._is_failing = True
            logger.warning("The profile %s ends here, and the model goes on: %s", self.path, error)

    def _begin(self) -> sqlite3.Connection:
        database = sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=rw", uri=True)
        # Readers find whole transactions while the model runs, and after it was killed.
        database.execute("pragma journal_mode=wal")
        database.execute("pragma synchronous=normal")
        database.executescript(_SCHEMA)
        with database:
            database.executemany("insert into segment values (?, ?)", enumerate(self._segments))
        return database

    def _write_call(self, database: sqlite3.Connection, number: int, events: Table) -> None:
        row = (number, len(events), events.astype("<i8").tobytes())
        database.execute("insert into call values (?, ?, ?)", row)
        if number < KEPT_CALLS:
            return
        self._last.append(number)
        if len(self._last) > KEPT_CALLS:
            self._leave_out(database, self._last.pop(0))

    def _leave_out(self, database: sqlite3.Connection, number: int) -> None:
        """Adds up the events of a call by segment, and drops them."""
        (data,) = database.execute("select events from call where number = ?", (number,)).fetchone()
        table = _table(data)
        names = ("segment", "start_ns", "end_ns")
        segments, starts, ends = (table[:, EventRow._fields.index(name)] for name in names)
        for segment in np.unique(segments).tolist():
            is_of_it = segments == segment
            total = int((ends[is_of_it] - starts[is_of_it]).sum())
            database.execute(
                "insert into left_out values (?1, ?2, ?3) on conflict (segment) do update set "
                "num_events = num_events + ?2, total_ns = total_ns + ?3",
                (segment, int(is_of_it.sum()), total),
            )
        database.execute("delete from call where number = ?", (number,))

    @staticmethod
    def _write_tracepoint(database: sqlite3.Connection, *row: Any) -> None:
        database.execute("insert into tracepoint values (?, ?, ?, ?)", row)


def read_run(path: Path, step_seconds: float | None = None) -> EngineRun:
    """Returns what ran, by a profile file; it may be written to at the same time.

    Args:
        path: of the file.
        step_seconds: how long a call took; by default the median of the calls in the file, from the
            first action to the last.

    Raises:
        sqlite3.Error: the file cannot be read.
    """
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
        query = "select count(*) from sqlite_master where type = 'table' and name = 'call'"
        if database.execute(query).fetchone() == (0,):
            return EngineRun((), (), step_seconds=step_seconds)
        names = [row[0] for row in database.execute("select name from segment order by number")]
        query = "select events from call order by number"
        tables = [_table(data) for (data,) in database.execute(query)]
        (left_out,) = database.execute("select total(num_events) from left_out").fetchone()
    if step_seconds is None:
        spans = [int(table[:, -1].max() - table[:, -2].min()) for table in tables if len(table)]
        step_seconds = statistics.median(spans) / _NS_PER_SECOND if spans else None
    events = [EventRow(*row) for table in tables for row in table.tolist()]
    return EngineRun(names, events, int(left_out), step_seconds)


def _table(data: bytes) -> Table:
    return np.frombuffer(data, "<i8").astype(np.int64).reshape(-1, len(EventRow._fields))
