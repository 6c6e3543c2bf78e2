"""Traces in Chrome's format as tables with the names and columns of Perfetto's database.

The tables hold slices, threads and processes: the columns `id`, `ts`, `dur`, `track_id`,
`category`, `name` and `depth` of `slice`, and those that lead to the names of a track. Source:
Perfetto's documentation of the tables of its trace processor. Times are whole nanoseconds there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

_TABLES = """
create table process (upid integer primary key, pid integer, name text);
create table thread (utid integer primary key, tid integer, name text, upid integer);
create table thread_track (id integer primary key, name text, utid integer);
create table slice (id integer primary key, ts integer, dur integer, track_id integer,
                    category text, name text, depth integer);
"""


def database_of(trace: Mapping[str, Any]) -> sqlite3.Connection:
    """Returns a database in memory with the slices of a trace."""
    database = sqlite3.connect(":memory:")
    database.executescript(_TABLES)
    threads: dict[tuple[int, int], int] = {}
    for event in trace["traceEvents"]:
        if event["name"] == "process_name":
            row = (event["pid"], event["pid"], event["args"]["name"])
            database.execute("insert into process values (?, ?, ?)", row)
        elif event["name"] == "thread_name":
            number = threads[event["pid"], event["tid"]] = len(threads)
            row = (number, event["tid"], event["args"]["name"], event["pid"])
            database.execute("insert into thread values (?, ?, ?, ?)", row)
            database.execute("insert into thread_track values (?, null, ?)", (number, number))
    ends: dict[int, list[int]] = {track: [] for track in threads.values()}
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    for event in sorted(slices, key=lambda one: (one["ts"], -one["dur"])):
        track = threads[event["pid"], event["tid"]]
        first, length = (int(event[name] * 1e3) for name in ("ts", "dur"))
        around = ends[track]
        while around and around[-1] <= first:
            around.pop()
        row = (first, length, track, event["cat"], event["name"], len(around))
        database.execute("insert into slice values (null, ?, ?, ?, ?, ?, ?)", row)
        around.append(first + length)
    return database
