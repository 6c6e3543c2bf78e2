"""The profile of a run as an SQLite file, written while the model runs; see docs/profile_file.md.

The events of a call are one row, whose bytes are those of a table of integers: a database with a
row for each event would cost more time than small models take.
"""

from __future__ import annotations

import json
import queue
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from poptorch_emu.errors import make_error
from poptorch_emu.log import logger
from poptorch_emu.version import __version__

FILE_NAME = "profile.pop"
SCHEMA_VERSION = 1
# How many calls are kept whole, at the beginning and at the end of a run.
KEPT_CALLS = 50
# Calls that wait for the writer; more are counted and not kept.
_MOST_WAITING = 16
_COLUMNS = ("replica", "ipu", "segment", "window", "micro_batch", "worker", "start_ns", "end_ns")
_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE section (name TEXT PRIMARY KEY, json TEXT NOT NULL);
CREATE TABLE segment (number INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE call (number INTEGER PRIMARY KEY, num_events INTEGER NOT NULL, events BLOB NOT NULL);
CREATE TABLE left_out (
    segment INTEGER PRIMARY KEY, num_events INTEGER NOT NULL, total_ns INTEGER NOT NULL
);
CREATE TABLE tracepoint (
    channel TEXT NOT NULL, name TEXT NOT NULL, start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL
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


@dataclass(frozen=True)
class Profile:
    """What a profile file holds.

    Attributes:
        meta: "name", "schema_version", "poptorch_emu".
        view: what the page shows, without the engine's timeline; empty where the machine's model
            did not get ready.
        segments: name of each segment of the program.
        calls: events of each call that is kept, by its number: (events, 8) integers, whose columns
            are those of `EventRow`.
        num_calls: that ran.
        left_out: number and nanoseconds of the events of the other calls, by segment.
        tracepoints: (channel, name, start_ns, end_ns).
    """

    meta: Mapping[str, str]
    view: Mapping[str, Any]
    segments: Sequence[str]
    calls: Mapping[int, Table]
    num_calls: int = 0
    left_out: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    tracepoints: Sequence[tuple[str, str, int, int]] = ()

    @property
    def events(self) -> list[EventRow]:
        """All events of the calls that are kept, in the order of the calls."""
        return [EventRow(*row) for table in self.calls.values() for row in table.tolist()]

    @property
    def num_left_out(self) -> int:
        """How many events of other calls there were."""
        return sum(count for count, _ in self.left_out.values())


class ProfileWriter:
    """Appends to a profile file from a thread of its own.

    Each call is one transaction, so that a process that is killed leaves a file that opens. What
    goes wrong with the disk ends the profile with one warning, and nothing else.
    """

    def __init__(self, folder: Path, name: str, segments: Sequence[str]) -> None:
        """Begins a new file, and replaces an old one.

        Args:
            folder: for the file; made if it does not exist.
            name: of the model.
            segments: name of each segment of the program.
        """
        self.path = folder / FILE_NAME
        self._waiting: queue.Queue[Any] = queue.Queue(_MOST_WAITING)
        self._meta = {
            "name": name,
            "schema_version": str(SCHEMA_VERSION),
            "poptorch_emu": __version__,
        }
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

    def add_sections(self, view: Mapping[str, Any]) -> None:
        """Writes what the page shows; each part replaces the one of that name."""
        self._waiting.put((self._write_sections, (dict(view),)))

    def add_tracepoint(self, channel: str, name: str, start_ns: int, end_ns: int) -> None:
        """Appends a stretch of time that the user named."""
        try:
            self._waiting.put_nowait((self._write_tracepoint, (channel, name, start_ns, end_ns)))
        except queue.Full:
            pass

    def flush(self) -> None:
        """Waits until all that was added is in the file."""
        self._waiting.join()

    def close(self) -> None:
        """Writes what is left and ends the thread."""
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
                with database:
                    self._write_number(database)
                database.close()
            except sqlite3.Error as error:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self._is_failing:
            self._is_failing = True
            logger.warning("The profile %s ends here, and the model goes on: %s", self.path, error)

    def _begin(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for suffix in ("", "-wal", "-shm", "-journal"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)
        database = sqlite3.connect(self.path)
        # Readers find whole transactions while the model runs, and after it was killed.
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        with database:
            database.executescript(_SCHEMA)
            database.executemany("INSERT INTO meta VALUES (?, ?)", self._meta.items())
            database.executemany("INSERT INTO segment VALUES (?, ?)", enumerate(self._segments))
        return database

    def _write_call(self, database: sqlite3.Connection, number: int, events: Table) -> None:
        row = (number, len(events), events.astype("<i8").tobytes())
        database.execute("INSERT INTO call VALUES (?, ?, ?)", row)
        if number < KEPT_CALLS:
            return
        self._last.append(number)
        if len(self._last) > KEPT_CALLS:
            self._leave_out(database, self._last.pop(0))
        self._write_number(database)

    def _leave_out(self, database: sqlite3.Connection, number: int) -> None:
        """Adds up the events of a call by segment, and drops them."""
        (data,) = database.execute("SELECT events FROM call WHERE number = ?", (number,)).fetchone()
        table = _table(data)
        columns = [table[:, _COLUMNS.index(name)] for name in ("segment", "start_ns", "end_ns")]
        segments, starts, ends = columns
        for segment in np.unique(segments).tolist():
            is_of_it = segments == segment
            total = int((ends[is_of_it] - starts[is_of_it]).sum())
            database.execute(
                "INSERT INTO left_out VALUES (?1, ?2, ?3) ON CONFLICT (segment) DO UPDATE SET "
                "num_events = num_events + ?2, total_ns = total_ns + ?3",
                (segment, int(is_of_it.sum()), total),
            )
        database.execute("DELETE FROM call WHERE number = ?", (number,))

    def _write_number(self, database: sqlite3.Connection) -> None:
        row = ("num_calls", str(self._num_calls))
        database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", row)

    @staticmethod
    def _write_sections(database: sqlite3.Connection, view: dict[str, Any]) -> None:
        rows = [(name, json.dumps(part, allow_nan=False)) for name, part in view.items()]
        database.executemany("INSERT OR REPLACE INTO section VALUES (?, ?)", rows)

    @staticmethod
    def _write_tracepoint(database: sqlite3.Connection, *row: Any) -> None:
        database.execute("INSERT INTO tracepoint VALUES (?, ?, ?, ?)", row)


def read_profile(path: str | Path) -> Profile:
    """Returns what a profile file holds; it may be written to at the same time.

    Raises:
        Error: there is no such file, or it is no profile of this version.
    """
    found = Path(path)
    if found.is_dir():
        found = found / FILE_NAME
    if not found.is_file():
        raise make_error(
            f"There is no profile {found}. Call Options.enableProfiling(folder) before the model "
            "is made, or emulator.report(model, folder) after a call."
        )
    database = sqlite3.connect(f"{found.resolve().as_uri()}?mode=ro", uri=True)
    try:
        meta = dict(database.execute("SELECT key, value FROM meta"))
        if meta.get("schema_version") != str(SCHEMA_VERSION):
            raise make_error(
                f"{found} has version {meta.get('schema_version')} of the schema, and this package "
                f"reads {SCHEMA_VERSION}. Make the profile again."
            )
        calls = {
            number: _table(data)
            for number, data in database.execute("SELECT number, events FROM call ORDER BY number")
        }
        return Profile(
            meta,
            {name: json.loads(t) for name, t in database.execute("SELECT name, json FROM section")},
            [row[0] for row in database.execute("SELECT name FROM segment ORDER BY number")],
            calls,
            int(meta.get("num_calls", len(calls))),
            {row[0]: row[1:] for row in database.execute("SELECT * FROM left_out")},
            database.execute("SELECT * FROM tracepoint ORDER BY start_ns").fetchall(),
        )
    except (sqlite3.Error, ValueError) as error:
        raise make_error(f"{found} is no profile that can be read: {error}.") from error
    finally:
        database.close()


def _table(data: bytes) -> Table:
    return np.frombuffer(data, "<i8").astype(np.int64).reshape(-1, len(_COLUMNS))
