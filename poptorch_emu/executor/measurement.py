"""Times of an executor's calls, its profile, and the listeners to its calls."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from poptorch_emu.config import CompileConfig, SyntheticData
from poptorch_emu.executor.attached_device import AttachedDevice
from poptorch_emu.log import logger
from poptorch_emu.module_loading import LateModule
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
from poptorch_emu.runtime import tracepoints
from poptorch_emu.runtime.session import Session
from poptorch_emu.untrusted.texts import file_name

if TYPE_CHECKING:
    from poptorch_emu.report import profile, profile_file, profile_reader, profile_writer
    from poptorch_emu.report.page import page_content, view_model
else:
    profile = LateModule("poptorch_emu.report.profile")
    profile_file = LateModule("poptorch_emu.report.profile_file")
    profile_reader = LateModule("poptorch_emu.report.profile_reader")
    profile_writer = LateModule("poptorch_emu.report.profile_writer")
    page_content = LateModule("poptorch_emu.report.page.page_content")
    view_model = LateModule("poptorch_emu.report.page.view_model")

Latency = tuple[float, float, float]

_NO_SPANS: tuple[Spans, Spans] = ([], [])

# Beginning and end of each part of a call.
WHOLE: tuple[End, End] = ((INPUT, min), (OUTPUT_COMPLETE, max))
INPUTS: tuple[End, End] = ((INPUT, min), (INPUT_COMPLETE, max))
COMPUTING: tuple[End, End] = ((INPUT_COMPLETE, max), (OUTPUT, max))
OUTPUTS: tuple[End, End] = ((OUTPUT, min), (OUTPUT_COMPLETE, max))


class CallListener(Protocol):
    """An object that follows the calls of a model, over all of its compilations."""

    def begin(self, session: Session) -> None:
        """Receives a session before its first call, or the present one."""

    def add_call(self, session: Session, results: Sequence[torch.Tensor]) -> None:
        """Receives the results of a successful call, on the thread that ran it."""


class _Listeners(list[CallListener]):
    """The listeners to the calls of one model; a deep copy of the model has none."""

    def __deepcopy__(self, _: Any) -> _Listeners:
        return _Listeners()


class Measurement:
    """The times of the last call, and the profile of all calls since the device was attached.

    The times are those of virtual IPUs on this computer, with a finer resolution than the
    reference's milliseconds. They are times of real IPUs only with `emulator.set_latencies`.
    """

    def __init__(self, device: AttachedDevice) -> None:
        """Starts without a call; `device` is the device that is measured."""
        self._device = device
        self._spans = _NO_SPANS
        self._call_seconds: float | None = None
        self._end_profile: Callable[[], object] = lambda: None
        # Function that replaces measured times by modelled ones, if the user wants them.
        self.modelled: Callable[[Spans, Spans], tuple[Spans, Spans]] | None = None
        self.profile: profile_writer.ProfileWriter | None = None
        self._listeners = _Listeners()

    def listen(self, listener: CallListener) -> None:
        """Begins to tell a listener of calls."""
        session = self._device.session
        if session is not None:
            listener.begin(session)
        self._listeners.append(listener)
        self._connect(session)

    def ignore(self, listener: CallListener) -> None:
        """Ends what `listen` began; does nothing for an unknown listener."""
        if listener in self._listeners:
            self._listeners.remove(listener)
            self._connect(self._device.session)

    def start(self, session: Session, view: Callable[[], Mapping[str, Any]]) -> None:
        """Starts to write the profile of `session`, if `enableProfiling` was set, and to listen.

        All files are complete when the program ends, even without a detach or destroy.

        Args:
            session: session that will run.
            view: returns a report about the model before it runs.
        """
        self._start_profile(session, view)
        for listener in self._listeners:
            listener.begin(session)
        self._connect(session)

    def _start_profile(self, session: Session, view: Callable[[], Mapping[str, Any]]) -> None:
        folder = profile_folder(session.executable.config)
        if folder is None:
            return
        # If the process is killed, its report lacks only the calls in progress.
        path = folder / profile_file.FILE_NAME
        if not _writes_report(session, path, view):
            return
        writer = profile_writer.ProfileWriter(path, session.executable.segment_names)
        self.profile = writer
        tracepoints.listeners.append(writer.add_tracepoint)
        self._end_profile = weakref.finalize(self, _end_profile_of, session, folder, writer)

    def _connect(self, session: Session | None) -> None:
        """Sets the function that `session` calls after each call, as the listeners need it."""
        if session is not None:
            is_heard = self.profile is not None or self._listeners
            tell = partial(_tell, self.profile, self._listeners) if is_heard else _tell_nobody
            session.after_call = tell

    def end(self, session: Session) -> None:
        """Writes the profile, and stores the times of the last call before `session` ends."""
        self._end_profile()
        self.profile = None
        self._spans, self._call_seconds = _spans_of(session), session.call_seconds

    def forget(self) -> None:
        """Drops the times of the last call."""
        self._spans, self._call_seconds = _NO_SPANS, None

    @property
    def call_seconds(self) -> float | None:
        """Measured seconds of the last call with its updates; never modelled."""
        session = self._device.session
        return self._call_seconds if session is None else session.call_seconds

    def counters(self) -> Counters:
        """Returns the times at which the last call transferred inputs and outputs."""
        session = self._device.session
        inputs, outputs = self._spans if session is None else _spans_of(session)
        if self.modelled is not None and any((*inputs, *outputs)):
            inputs, outputs = self.modelled(inputs, outputs)
        return counters(inputs, outputs)

    def latency(self, ends: tuple[End, End]) -> Latency:
        """Returns the shortest, longest and mean time of a part of a call, in seconds."""
        return latency(self.counters(), *ends)


def profile_folder(config: CompileConfig) -> Path | None:
    """Returns the folder of `enableProfiling`, or None if it was not set."""
    if config.profile_dir is None:
        return None
    default = "training" if config.is_training else "inference"
    return Path(config.profile_dir) / file_name(config.model_name or default, default)


def _tell_nobody(session: Session, results: Sequence[torch.Tensor]) -> None:
    """Ignores a call."""


def _tell(
    profile: profile_writer.ProfileWriter | None,
    listeners: Sequence[CallListener],
    session: Session,
    results: Sequence[torch.Tensor],
) -> None:
    if profile is not None:
        profile.add_call(session.take_events())
    for listener in tuple(listeners):
        listener.add_call(session, results)


def _spans_of(session: Session) -> tuple[Spans, Spans]:
    """Returns the spans of inputs and outputs in the last call; empty for synthetic data."""
    inputs, outputs = session.input_spans(), session.output_spans()
    if session.executable.config.synthetic_data is not SyntheticData.OFF:
        return [[] for _ in inputs], [[] for _ in outputs]
    return inputs, outputs


def _writes_report(session: Session, path: Path, view: Callable[[], Mapping[str, Any]]) -> bool:
    """Writes the report before a run, and returns whether that succeeded."""
    executable = session.executable
    try:
        report = view()
    except Exception as error:  # A failed report must not stop a run.
        logger.warning("The profile has no predictions of time: %s", error)
        name = path.parent.name
        plain = page_content.PageContent(name, executable.config, tiles=executable.tiles)
        report = view_model.view_model(plain)
    try:
        profile_file.write_profile_file(path, report)
    except OSError as error:
        logger.warning("The profile cannot be written; the model runs without one: %s", error)
        return False
    return True


def _end_profile_of(session: Session, folder: Path, writer: profile_writer.ProfileWriter) -> None:
    tracepoints.listeners.remove(writer.add_tracepoint)
    session.after_call = _tell_nobody
    writer.close()
    executable = session.executable
    try:
        run = profile_reader.read_run(writer.path)
        names = executable.segment_names
        profile.write_profile(folder, executable, names, run.events, run.num_left_out)
    except (ValueError, OSError) as error:
        if not writer.has_failed:  # One warning is enough.
            logger.warning("The profile in %s is not complete: %s", folder, error)
