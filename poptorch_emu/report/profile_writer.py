"""Appends what the engine runs to a profile file, while the model runs; see docs/profile_file.md.

The events of a call are one row, whose bytes are those of a table of integers: a row for each event
would cost more time than small models take.
"""

from __future__ import annotations

import sqlite3
import statistics
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from poptorch_emu.log import logger
from poptorch_emu.report.page.page_content import EngineRun

# How many calls are kept whole, at the beginning and at the end of a run.
KEPT_CALLS = 50
# Events that wait for the writer; beyond them calls are counted and not kept.
_MOST_WAITING = 200_000
_SECONDS_BETWEEN = 1.0
_NS_PER_SECOND = 1e9
_TABLES = (
    "segment (number integer primary key, name text not null)",
    "call (number integer primary key, num_events integer not null, events blob not null)",
    "left_out (segment integer primary key, num_events integer not null, "
    "total_ns integer not null)",
    "tracepoint (channel text not null, name text not null, start_ns integer not null, "
    "end_ns integer not null)",
)

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

    What has come is written once a second, in one transaction, so that a process that is killed
    leaves a file that opens. What goes wrong with the disk ends the profile with one warning, and
    nothing else.
    """

    def __init__(self, path: Path, segments: Sequence[str]) -> None:
        """Starts the thread, which opens the file when there is something to write.

        Args:
            path: of the file.
            segments: name of each segment of the program.
        """
        self.path = path
        self._segments = tuple(segments)
        self._changed = threading.Condition()
        # The following are guarded by it.
        self._calls: list[tuple[int, Table]] = []
        self._tracepoints: list[tuple[str, str, int, int]] = []
        self._num_waiting = 0  # events
        self._num_calls = 0
        self._is_wanted_now = False
        self._is_closing = False
        # The following belong to the thread.
        # Numbers and sums of the calls that are kept of the end.
        self._last: deque[tuple[int, Table]] = deque()
        self._is_failing = False
        self._thread = threading.Thread(target=self._work, name="profile", daemon=True)
        self._thread.start()

    def add_call(self, events: Table) -> None:
        """Appends the events of a call; (events, 8) integers."""
        with self._changed:
            self._num_calls += 1
            if self._num_waiting <= _MOST_WAITING:  # Else the disk is slower than the model.
                self._calls.append((self._num_calls - 1, events))
                self._num_waiting += len(events)

    def add_tracepoint(self, channel: str, name: str, start_ns: int, end_ns: int) -> None:
        """Appends a stretch of time that the user named."""
        with self._changed:
            if self._num_waiting <= _MOST_WAITING:
                self._tracepoints.append((channel, name, start_ns, end_ns))
                self._num_waiting += 1

    def run(self, step_seconds: float | None = None) -> EngineRun:
        """Returns what ran until now; waits until it is in the file."""
        if self._thread.is_alive():  # It is not in a process that was forked.
            with self._changed:
                self._is_wanted_now = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self._is_wanted_now)
        return read_run(self.path, step_seconds)

    def close(self) -> None:
        """Writes what is left and ends the thread."""
        if self._thread.is_alive():
            with self._changed:
                self._is_closing = True
                self._changed.notify_all()
            self._thread.join()

    def _work(self) -> None:
        database: sqlite3.Connection | None = None
        is_closing = False
        while not is_closing:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._is_wanted_now or self._is_closing, _SECONDS_BETWEEN
                )
                is_closing = self._is_closing
                calls, self._calls = self._calls, []
                tracepoints, self._tracepoints = self._tracepoints, []
                self._num_waiting = 0
            try:
                if (calls or tracepoints) and not self._is_failing:
                    database = database or self._begin()
                    with database:
                        self._write_calls(database, calls)
                        database.executemany(
                            "insert into tracepoint values (?, ?, ?, ?)", tracepoints
                        )
            except (sqlite3.Error, OSError) as error:
                self._fail(error)
            with self._changed:
                self._is_wanted_now = False
                self._changed.notify_all()
        if database is not None:
            try:
                # A file that is complete needs no log beside it.
                database.execute("pragma journal_mode=delete")
                database.close()
            except sqlite3.Error as error:
                self._fail(error)

    @property
    def has_failed(self) -> bool:
        """Whether the file could not be written to, which a warning has said."""
        return self._is_failing

    def _fail(self, error: Exception) -> None:
        if not self._is_failing:
            self._is_failing = True
            logger.warning("The profile %s ends here, and the model goes on: %s", self.path, error)

    def _begin(self) -> sqlite3.Connection:
        database = sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=rw", uri=True)
        # Readers find whole transactions while the model runs, and after it was killed.
        database.execute("pragma journal_mode=wal")
        database.execute("pragma synchronous=normal")
        with database:  # All tables or none, if the disk is full.
            database.execute("begin")
            for table in _TABLES:
                database.execute(f"create table if not exists {table}")
            database.executemany("insert into segment values (?, ?)", enumerate(self._segments))
        return database

    def _write_calls(self, database: sqlite3.Connection, calls: list[tuple[int, Table]]) -> None:
        """Writes the calls that are kept, and sums up those that no longer are."""
        later = [call for call in calls if call[0] >= KEPT_CALLS]
        kept = [call for call in calls if call[0] < KEPT_CALLS] + later[-KEPT_CALLS:]
        left_out = [table for _, table in later[:-KEPT_CALLS]]
        sums = self._sums(np.concatenate(left_out)) if left_out else self._sums(_table(b""))
        self._last += ((number, self._sums(table)) for number, table in later[-KEPT_CALLS:])
        dropped = [self._last.popleft() for _ in range(len(self._last) - KEPT_CALLS)]
        database.executemany("delete from call where number = ?", [(call[0],) for call in dropped])
        sums = sum((call[1] for call in dropped), sums)
        database.executemany(
            "insert into call values (?, ?, ?)",
            [(number, len(table), table.astype("<i8", copy=False).data) for number, table in kept],
        )
        database.executemany(
            "insert into left_out values (?1, ?2, ?3) on conflict (segment) do update set "
            "num_events = num_events + ?2, total_ns = total_ns + ?3",
            [(number, *pair) for number, pair in enumerate(sums.T.tolist()) if pair[0]],
        )

    def _sums(self, table: Table) -> Table:
        """Returns for each segment how many events it has, and their nanoseconds; (2, segments)."""
        names = ("segment", "start_ns", "end_ns")
        segments, starts, ends = (table[:, EventRow._fields.index(name)] for name in names)
        counts = np.bincount(segments, minlength=len(self._segments))
        # As floating-point numbers they are exact for a hundred days.
        total = np.bincount(segments, ends - starts, minlength=len(self._segments))
        return np.stack([counts, total.astype(np.int64)])


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
        tracepoints = database.execute("select * from tracepoint order by start_ns").fetchall()
        (left_out,) = database.execute("select total(num_events) from left_out").fetchone()
    if step_seconds is None:
        spans = [int(table[:, -1].max() - table[:, -2].min()) for table in tables if len(table)]
        step_seconds = statistics.median(spans) / _NS_PER_SECOND if spans else None
    events = [EventRow(*row) for table in tables for row in table.tolist()]
    return EngineRun(names, events, int(left_out), step_seconds, tracepoints)


def read_calls(path: Path) -> list[tuple[int, int, int]]:
    """Returns number, begin and end, in nanoseconds, of each call that a profile file keeps.

    Raises:
        sqlite3.Error: the file cannot be read.
    """
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
        query = "select count(*) from sqlite_master where type = 'table' and name = 'call'"
        if database.execute(query).fetchone() == (0,):
            return []
        rows = database.execute("select number, events from call order by number").fetchall()
    tables = [(number, _table(data)) for number, data in rows]
    return [(n, int(t[:, -2].min()), int(t[:, -1].max())) for n, t in tables if len(t)]


def _table(data: bytes) -> Table:
    return np.frombuffer(data, "<i8").astype(np.int64).reshape(-1, len(EventRow._fields))
