"""The content of a page from a profile file: its report, and the events appended to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from poptorch_emu.report.page.view_timeline import engine_timeline
from poptorch_emu.report.profile_reader import read_profile_file, read_run
from poptorch_emu.report.report_check import refuses_damage


def profile_view(path: Path) -> dict[str, Any]:
    """Returns the content of a page for a profile; see `view_model.view_model`.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not a profile file, is damaged, or has another version.
    """
    with refuses_damage(path):
        view, run = read_profile_file(path), read_run(path)
        if run.events:
            view["timelines"] = [*view["timelines"], engine_timeline(run)]
        if run.step_seconds:
            rows = view["speed"]["rows_per_step"]
            view["speed"] |= {
                "measured_step_seconds": run.step_seconds,
                "measured_rows_per_second": rows / run.step_seconds if rows else None,
            }
        return view
