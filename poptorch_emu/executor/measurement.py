"""What an executor can say about the time that its model took."""

from __future__ import annotations

import datetime
import weakref
from pathlib import Path

from poptorch_emu.config import CompileConfig, SyntheticData
from poptorch_emu.errors import compiler_error, make_error
from poptorch_emu.executor.executor_state import ExecutorState
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
from poptorch_emu.report.profile import write_profile
from poptorch_emu.runtime.session import Session

Latency = tuple[float, float, float]

NO_SPANS: tuple[Spans, Spans] = ([], [])

_FIRST_INPUT: End = (INPUT, min)
_LAST_INPUT_COMPLETE: End = (INPUT_COMPLETE, max)
_FIRST_OUTPUT: End = (OUTPUT, min)
_LAST_OUTPUT: End = (OUTPUT, max)
_LAST_OUTPUT_COMPLETE: End = (OUTPUT_COMPLETE, max)


def spans_of(session: Session) -> tuple[Spans, Spans]:
    """Returns when the inputs and outputs of the last call crossed; synthetic data never do."""
    inputs, outputs = session.input_spans(), session.output_spans()
    if session.executable.config.synthetic_data is not SyntheticData.OFF:
        return [[] for _ in inputs], [[] for _ in outputs]
    return inputs, outputs


class Measurement(ExecutorState):
    """The part of `PoplarExecutor` that measures.

    The times of the counters are those of virtual IPUs on this computer, finer than the reference's
    milliseconds; what IPUs would take they do not say.
    """

    def compilationTime(self) -> datetime.timedelta:
        """Returns how long the compilation took (exact).

        Raises:
            Error: the model is not compiled, or `showCompilationProgressBar(False)` was set.
        """
        if self._executable is None:
            raise make_error("Please compile the model before obtaining compilation time.")
        if self._compilation_time is None:
            raise make_error(
                "Please set showCompilationProgressBar option to obtain compilation time."
            )
        return self._compilation_time

    def cycleCount(self) -> int:
        """Returns how many cycles the last call took (refused: there is no cycle model yet).

        Raises:
            Error: always; what it says first is what the reference would say.
        """
        if not self._options._Popart.options["instrumentWithHardwareCycleCounter"]:
            raise make_error(
                "Cycle count logging is disabled. Please set option logCycleCount to True to "
                "enable it."
            )
        if self._executable is None:
            raise make_error("Please run the model at least once before obtaining cycle count.")
        raise compiler_error(
            "There is no model of an IPU's cycles here yet, so cycles cannot be counted. "
            "getLatency() tells how long calls take on this computer."
        )

    def getPerfCounters(self) -> Counters:
        """Returns when the inputs and outputs of the last call crossed (exact in form).

        Returns:
            For "input", "input_complete", "output" and "output_complete" a list of tensors, and of
            each the times in seconds of its pieces, ascending; `[[]]` without a call.
        """
        spans = self._spans if self._session is None else spans_of(self._session)
        return counters(*spans)

    def getLatency(self) -> Latency:
        """Returns the shortest, longest and mean time from an input to its output (exact in form).

        In seconds; zeros if nothing ran.
        """
        return latency(self.getPerfCounters(), _FIRST_INPUT, _LAST_OUTPUT_COMPLETE)

    def getHostIpuLatency(self) -> Latency:
        """Returns the same for the way of the inputs to the device (exact in form)."""
        return latency(self.getPerfCounters(), _FIRST_INPUT, _LAST_INPUT_COMPLETE)

    def getComputeLatency(self) -> Latency:
        """Returns the same from the last input on the device to the last output (exact in form)."""
        return latency(self.getPerfCounters(), _LAST_INPUT_COMPLETE, _LAST_OUTPUT)

    def getIpuHostLatency(self) -> Latency:
        """Returns the same for the way of the outputs to the host (exact in form)."""
        return latency(self.getPerfCounters(), _FIRST_OUTPUT, _LAST_OUTPUT_COMPLETE)

    def _start_profile(self, session: Session) -> None:
        """Has what runs in `session` written at its end, if `enableProfiling` asked for it.

        A program that neither detaches nor destroys its model finds the files when it ends.
        """
        folder = self._profile_folder(session.executable.config)
        if folder is not None:
            self._end_profile = weakref.finalize(self, _write_profile_of, session, folder)

    def _profile_folder(self, config: CompileConfig) -> Path | None:
        """Returns where `enableProfiling` wants its files."""
        if config.profile_dir is None:
            return None
        name = config.model_name or ("training" if self._training else "inference")
        return Path(config.profile_dir) / name


def _write_profile_of(session: Session, folder: Path) -> None:
    executable = session.executable
    write_profile(folder, executable, executable.segment_names, session.take_events())
