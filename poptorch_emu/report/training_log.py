"""Writes the curves of a training as TensorBoard's scalars, with an optional package."""

from __future__ import annotations

import importlib
import itertools
import os
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from poptorch_emu.log import logger
from poptorch_emu.plan.time.time_plan import TimePlan
from poptorch_emu.report.training_scalars import (
    LOSS,
    Scalar,
    Values,
    measured,
    modelled,
    of_outputs,
    outputs_of,
)
from poptorch_emu.runtime.session import Session


class TrainingLog:
    """The log of one training, which `emulator.log_training` begins and `close` ends.

    Attributes:
        path: folder of the run.
        writer: PyTorch's `SummaryWriter` of the run, for scalars of the user's own.
        num_updates: number of weight updates since the log began.
        times: function that returns the plan of time of a call on the virtual system.
        loss_output: position of the output that is the loss; `None` to find it in the graph.
    """

    times: Callable[[], TimePlan]
    loss_output: int | None = None

    def __init__(self, parent: Path, name: str) -> None:
        """Opens the file of a new run.

        Args:
            parent: folder of all runs.
            name: name of the run, which gets a number if it exists.

        Raises:
            ImportError: TensorBoard is not installed.
            OSError: the folder cannot be created.
        """
        make_writer = _tensorboard("torch.utils.tensorboard").SummaryWriter
        self.path = _run_folder(parent, name)
        self.writer = make_writer(str(self.path))
        self.num_updates = 0
        self._num_rows = 0
        self._modelled: Values = {}
        self._outputs: dict[int, tuple[str, Scalar]] = {}
        self._described: set[str] = set()
        self._last_end: float | None = None
        self._has_failed = False
        self._process = os.getpid()
        self._close = weakref.finalize(self, _close, self.writer, self._process)
        self.at_close: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        state = "open" if self._close.alive else "closed"
        return f"<log of a training in {str(self.path)!r}, {self.num_updates} updates, {state}>"

    def __enter__(self) -> TrainingLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Writes what is left, and follows the training no longer; may be called again."""
        self.at_close()
        self._close()

    def begin(self, session: Session) -> None:
        """Prepares the log for the calls of a session."""
        plan, executable = self.times(), session.executable
        self._num_rows, self._last_end = plan.samples_per_step, None
        self._modelled = modelled(plan, executable)
        self._outputs = outputs_of(executable)
        if self.loss_output is not None:
            self._outputs[self.loss_output] = LOSS.tag, LOSS
        if all(kind is not LOSS for _, kind in self._outputs.values()):
            logger.warning(
                "The log in %s has no loss, because forward does not return it. Return the loss "
                "as a number, alone or in a tuple.",
                self.path,
            )

    def add_call(self, session: Session, results: Sequence[torch.Tensor]) -> None:
        """Writes the scalars of a call. After an error, the model runs on without a log."""
        now = time.perf_counter()
        seconds = None if self._last_end is None else now - self._last_end
        # A process that was forked has no thread that writes.
        if not self._has_failed and os.getpid() == self._process:
            updates = of_outputs(self._outputs, results, session.executable)
            updates[-1] |= self._modelled | measured(session, self._num_rows, seconds)
            try:
                for number, values in enumerate(updates, self.num_updates + 1):
                    self._write(number, values)
            except Exception as error:  # A failed log must not stop a training.
                self._has_failed = True
                logger.warning("The log in %s ends here: %s", self.path, error)
            self.num_updates += len(updates)
        self._last_end = time.perf_counter()

    def _write(self, update: int, values: Values) -> None:
        """Writes the scalars of one update as one record; a new curve gets its description."""
        messages = _tensorboard("tensorboard.compat.proto.summary_pb2")
        entries = []
        for (tag, kind), value in values.items():
            entry = messages.Summary.Value(tag=tag, simple_value=value)
            if tag not in self._described:
                self._described.add(tag)
                entry.metadata.summary_description = kind.description
                entry.metadata.plugin_data.plugin_name = "scalars"
            entries.append(entry)
        if entries:
            self.writer.file_writer.add_summary(messages.Summary(value=entries), update)


def _run_folder(parent: Path, name: str) -> Path:
    """Creates and returns a new folder below `parent`; a number tells runs of one name apart.

    Raises:
        OSError: the folder cannot be created.
    """
    for number in itertools.count(1):
        path = parent / (name if number == 1 else f"{name}_{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if not path.parent.is_dir():
                raise
        else:
            return path
    raise AssertionError("counting never ends")


def _tensorboard(module: str) -> Any:
    """Returns a module of TensorBoard, or PyTorch's module for it.

    Raises:
        ImportError: TensorBoard is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"The log of a training needs TensorBoard, but importing it failed: {error}. Run "
            "pip install 'poptorch_emu[tensorboard]'."
        ) from error


def _close(writer: Any, process: int) -> None:
    if os.getpid() == process:
        writer.close()
