"""What the page shows of a profile file: its sections, and a timeline of the events in it."""

from __future__ import annotations

import statistics
from typing import Any

from poptorch_emu.errors import make_error
from poptorch_emu.report.page.reading import EngineRun
from poptorch_emu.report.page.view_timeline import engine_timeline
from poptorch_emu.report.profile_file import Profile

_NS_PER_SECOND = 1e9
_START, _END = 6, 7  # columns of a table of events


def run_of(profile: Profile, step_seconds: float | None = None) -> EngineRun:
    """Returns what the engine ran, with the time of a call if it is known better."""
    seconds = _median_seconds(profile) if step_seconds is None else step_seconds
    return EngineRun(profile.segments, profile.events, profile.num_left_out, seconds)


def profile_view(profile: Profile) -> dict[str, Any]:
    """Returns what the page shows of a profile; see `view_model.view_model`.

    Raises:
        Error: the file has no figures of the machine, since the process ended before.
    """
    if not profile.view:
        raise make_error(
            f"The profile of {profile.meta.get('name')} holds no figures of the machine: the "
            "process ended before they were written. Run the model again."
        )
    view, run = dict(profile.view), run_of(profile)
    if run.events:
        view["timelines"] = [*view["timelines"], engine_timeline(run)]
    if run.step_seconds:
        rows = view["speed"]["rows_per_step"]
        view["speed"] = {
            **view["speed"],
            "measured_step_seconds": run.step_seconds,
            "measured_rows_per_second": rows / run.step_seconds if rows else None,
        }
    return view


def _median_seconds(profile: Profile) -> float | None:
    """Returns how long a call took, from its first action to its last."""
    spans = [
        int(table[:, _END].max() - table[:, _START].min())
        for table in profile.calls.values()
        if len(table)
    ]
    return statistics.median(spans) / _NS_PER_SECOND if spans else None
