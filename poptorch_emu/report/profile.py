"""Writes the engine's events as text files for people, and as a trace for viewers.

Times are those of the engine on the host, not of an IPU.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from poptorch_emu.compile.executable import Executable
from poptorch_emu.ir.text import to_text
from poptorch_emu.report.profile_file import EventRow
from poptorch_emu.report.schedule_grid import to_grid
from poptorch_emu.report.tile_report import TileReport
from poptorch_emu.untrusted.files import write_whole

_NS_PER_US = 1000.0


def write_profile(
    folder: Path,
    executable: Executable,
    segments: Sequence[str],
    events: Sequence[EventRow],
    num_dropped_events: int = 0,
) -> None:
    """Writes graph, schedule and memory as text, and `trace.json` (Chrome's trace format).

    Args:
        folder: folder for the files; created if it does not exist.
        executable: executable that ran.
        segments: names of the segments of the program.
        events: actions of all calls; of a long run, those of the first and the last calls.
        num_dropped_events: number of actions left out in between; written to `otherData`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    graph, schedule = to_text(executable.graph), to_grid(executable.schedule)
    memory = str(TileReport.of(executable.tiles))
    trace = {
        "traceEvents": [_trace_event(event, segments) for event in events],
        "otherData": {"dropped_events": num_dropped_events},
    }
    texts = {
        "graph.txt": f"{graph}\n",
        "schedule.txt": f"{schedule}\n",
        "memory.txt": f"{memory}\n",
        "trace.json": json.dumps(trace),
    }
    for name, text in texts.items():
        write_whole(folder / name, text.encode(errors="backslashreplace"))


def _trace_event(event: EventRow, segments: Sequence[str]) -> dict[str, Any]:
    return {
        "name": segments[event.segment],
        "ph": "X",
        "pid": f"replica {event.replica}",
        "tid": f"IPU {event.ipu}",
        "ts": event.start_ns / _NS_PER_US,
        "dur": (event.end_ns - event.start_ns) / _NS_PER_US,
        "args": {
            "window": event.window,
            "micro_batch": event.micro_batch,
            "worker": event.worker,
        },
    }
