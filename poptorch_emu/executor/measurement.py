"""What an executor can say about the time that its calls took."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

from poptorch_emu.config import CompileConfig, SyntheticData
from poptorch_emu.executor.device_hold import DeviceHold
from poptorch_emu.log import logger
from poptorch_emu.report.latency import (
    INPUT,
    INPUT_COMPLETE,
    OUTPUT,
    OUTPUT_COMPLETE,
    Counters,
    End,
    Spans,
    counters,
    latency,
)
from poptorch_emu.report.page.reading import EngineRun, Reading
from poptorch_emu.report.page.view_model import view_model
from poptorch_emu.report.profile import RunEvent, write_profile
from poptorch_emu.report.profile_file import FILE_NAME, write_profile_file
from poptorch_emu.runtime.session import Session

Latency = tuple[float, float, float]

_NO_SPANS: tuple[Spans, Spans] = ([], [])

_FIRST_INPUT: End = (INPUT, min)
_LAST_INPUT_COMPLETE: End = (INPUT_COMPLETE, max)
_FIRST_OUTPUT: End = (OUTPUT, min)
_LAST_OUTPUT: End = (OUTPUT, max)
_LAST_OUTPUT_COMPLETE: End = (OUTPUT_COMPLETE, max)


class Measurement:
    """The times of the last call, and the profile of all since the device was attached.

    The times are those of virtual IPUs on this computer, finer than the reference's milliseconds;
    what IPUs would take they do not say.
    """

    def __init__(self, hold: DeviceHold) -> None:
        """Starts without a call; `hold` tells which device's times count."""
        self._hold = hold
        self._spans = _NO_SPANS
        self._end_profile: Callable[[], object] = lambda: None

    def start(self, session: Session) -> None:
        """Has what runs in `session` written at its end, if `enableProfiling` asked for it.

        A program that neither detaches nor destroys its model finds the files when it ends.
        """
        folder = profile_folder(session.executable.config)
        if folder is not None:
            # A process that is killed leaves a report that tells all but what ran.
            if _writes_profile_file(session, folder):
                self._end_profile = weakref.finalize(self, _write_profile_of, session, folder)

    def end(self, session: Session) -> None:
        """Writes the profile and keeps the times of the last call, before `session` is gone."""
        self._end_profile()
        self._spans = _spans_of(session)

    def forget(self) -> None:
        """Drops the times of the last call."""
        self._spans = _NO_SPANS

    def counters(self) -> Counters:
        """Returns when the inputs and outputs of the last call crossed."""
        session = self._hold.session
        return counters(*(self._spans if session is None else _spans_of(session)))

    def whole_latency(self) -> Latency:
        """Returns the shortest, longest and mean time from an input to its output, in seconds."""
        return latency(self.counters(), _FIRST_INPUT, _LAST_OUTPUT_COMPLETE)

    def input_latency(self) -> Latency:
        """Returns the same for the way of the inputs to the device."""
        return latency(self.counters(), _FIRST_INPUT, _LAST_INPUT_COMPLETE)

    def compute_latency(self) -> Latency:
        """Returns the same from the last input on the device to the last output."""
        return latency(self.counters(), _LAST_INPUT_COMPLETE, _LAST_OUTPUT)

    def output_latency(self) -> Latency:
        """Returns the same for the way of the outputs to the host."""
        return latency(self.counters(), _FIRST_OUTPUT, _LAST_OUTPUT_COMPLETE)


def profile_folder(config: CompileConfig) -> Path | None:
    """Returns where `enableProfiling` wants its files, `None` if it did not ask."""
    if config.profile_dir is None:
        return None
    name = config.model_name or ("training" if config.is_training else "inference")
    return Path(config.profile_dir) / name


def _spans_of(session: Session) -> tuple[Spans, Spans]:
    """Returns when the inputs and outputs of the last call crossed; synthetic data never do."""
    inputs, outputs = session.input_spans(), session.output_spans()
    if session.executable.config.synthetic_data is not SyntheticData.OFF:
        return [[] for _ in inputs], [[] for _ in outputs]
    return inputs, outputs


def _write_profile_of(session: Session, folder: Path) -> None:
    executable = session.executable
    num_dropped = session.num_dropped_events()
    events = session.take_events()
    if not _writes_profile_file(session, folder, events, num_dropped):
        return
    try:
        write_profile(folder, executable, executable.segment_names, events, num_dropped)
    except OSError as error:
        _warn(error)


def _writes_profile_file(
    session: Session, folder: Path, events: Sequence[RunEvent] = (), num_dropped: int = 0
) -> bool:
    """Writes `profile.pop`, and returns whether it could; training goes on if it could not."""
    executable = session.executable
    run = EngineRun(executable.segment_names, events, num_dropped)
    reading = Reading(folder.name, executable.config, tiles=executable.tiles, run=run)
    try:
        write_profile_file(folder / FILE_NAME, view_model(reading))
    except OSError as error:
        _warn(error)
        return False
    return True


def _warn(error: OSError) -> None:
    logger.warning("Nothing more is profiled, but the model runs: %s", error)
