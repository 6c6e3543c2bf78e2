"""Appends the engine's events to a profile file while the model runs; see docs/profile_file.md.

The events of a call are one row with the bytes of a table of integers, because one row for each
event would take longer than small models do.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from poptorch_emu.log import logger
from poptorch_emu.report.page.page_content import EngineRun
from poptorch_emu.report.profile_file import APPENDED_TABLES, EventRow, make_tables
from poptorch_emu.report.profile_reader import read_run

# Number of calls that are kept whole at the beginning of a run, and at its end.
KEPT_CALLS = 50
# Largest number of waiting events; while more wait, new calls are counted but not kept.
_MOST_WAITING = 200_000
_SECONDS_BETWEEN = 1.0

Table = NDArray[np.int64]


class ProfileWriter:
    """Appends to a file of `write_profile_file`, from its own thread.

    New events are written once a second in one transaction, so that a killed process leaves a
    readable file. After an error of the disk the profile ends with one warning, and the model goes
    on.
    """

    def __init__(self, path: Path, segments: Sequence[str]) -> None:
        """Starts the thread, which opens the file when there is something to write.

        Args:
            path: path of the file.
            segments: names of the segments of the program.
        """
        self.path = path
        self._segments = tuple(segments)
        self._changed = threading.Condition()
        # The condition guards the attributes from here to `_is_closing`.
        self._calls: list[tuple[int, Table]] = []
        self._tracepoints: list[tuple[str, str, int, int]] = []
        self._num_waiting = 0  # Number of waiting events.
        self._num_calls = 0
        self._is_wanted_now = False
        self._is_closing = False
        # Only the thread reads and writes the following attributes. `_last` holds (number, sums for
        # each segment) of the calls that are kept at the end of the run.
        self._last: deque[tuple[int, Table]] = deque()
        self._is_failing = False
        self._thread = threading.Thread(target=self._work, name="profile", daemon=True)
        self._thread.start()

    def add_call(self, events: Table) -> None:
        """Appends the events of a call, (events, 8) integers."""
        with self._changed:
            self._num_calls += 1
            if self._num_waiting <= _MOST_WAITING:  # Otherwise the disk is slower than the model.
                self._calls.append((self._num_calls - 1, events))
                self._num_waiting += len(events)

    def add_tracepoint(self, channel: str, name: str, start_ns: int, end_ns: int) -> None:
        """Appends a stretch of time that the user marked by a tracepoint."""
        with self._changed:
            if self._num_waiting <= _MOST_WAITING:
                self._tracepoints.append((channel, name, start_ns, end_ns))
                self._num_waiting += 1

    def run(self, step_seconds: float | None = None) -> EngineRun:
        """Returns the events until now; waits until they are in the file."""
        if self._thread.is_alive():  # A forked process has no such thread.
            with self._changed:
                self._is_wanted_now = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self._is_wanted_now)
        return read_run(self.path, step_seconds)

    def close(self) -> None:
        """Writes the remaining events and ends the thread."""
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
            except (sqlite3.Error, OSError, ValueError) as error:  # A name may not be valid text.
                self._fail(error)
            with self._changed:
                self._is_wanted_now = False
                self._changed.notify_all()
        if database is not None:
            try:
                # A complete file needs no write-ahead log beside it.
                database.execute("pragma journal_mode=delete")
                database.close()
            except sqlite3.Error as error:
                self._fail(error)

    @property
    def has_failed(self) -> bool:
        """Whether writing to the file has failed; a warning has said so."""
        return self._is_failing

    def _fail(self, error: Exception) -> None:
        if not self._is_failing:
            self._is_failing = True
            logger.warning(
                "The profile %s cannot be written any further and ends here; the model continues "
                "to run: %s",
                self.path,
                error,
            )

    def _begin(self) -> sqlite3.Connection:
        database = sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=rw", uri=True)
        # A write-ahead log lets readers see whole transactions, also after the process was killed.
        database.execute("pragma journal_mode=wal")
        database.execute("pragma synchronous=normal")
        with database:  # One transaction, so that a full disk leaves none of the tables.
            database.execute("begin")
            make_tables(database, APPENDED_TABLES)
            database.executemany("insert into segment values (?, ?)", enumerate(self._segments))
        return database

    def _write_calls(self, database: sqlite3.Connection, calls: list[tuple[int, Table]]) -> None:
        """Writes the calls that are kept, and adds up those that are dropped."""
        later = [call for call in calls if call[0] >= KEPT_CALLS]
        kept = [call for call in calls if call[0] < KEPT_CALLS] + later[-KEPT_CALLS:]
        left_out = [table for _, table in later[:-KEPT_CALLS]]
        no_events: Table = np.empty((0, len(EventRow._fields)), np.int64)
        sums = self._sums(np.concatenate([no_events, *left_out]))
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
        """Returns the number of events and their nanoseconds, for each segment; (2, segments)."""
        names = ("segment", "start_ns", "end_ns")
        segments, starts, ends = (table[:, EventRow._fields.index(name)] for name in names)
        counts = np.bincount(segments, minlength=len(self._segments))
        # Float64 sums of nanoseconds are exact up to a hundred days.
        total = np.bincount(segments, ends - starts, minlength=len(self._segments))
        return np.stack([counts, total.astype(np.int64)])
