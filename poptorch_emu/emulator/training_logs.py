"""Curves of a whole training, for TensorBoard."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from poptorch_emu.emulator.given_values import FOLLOW, wrapped
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.executor.wrapping import is_wrapped
from poptorch_emu.report.training_log import TrainingLog
from poptorch_emu.untrusted.files import given_path
from poptorch_emu.untrusted.texts import file_name


def log_training(
    model: Any, directory: str | os.PathLike[str], *, name: str | None = None
) -> TrainingLog:
    """Writes curves of losses, throughput and memory over updates for TensorBoard (exact).

    Each log is a run of its own, in a folder below `directory`, so that several models, or several
    trainings of one model, are drawn together: `tensorboard --logdir directory`. The step of a
    point is the number of updates since the log began. The log goes on when the model is compiled
    anew. Models without a log are not slower. Values for the machine are modelled, see the table.

    | Scalar | Unit | Value | |
    |---|---|---|---|
    | `loss` | that of forward | the loss | *exact* |
    | `outputs/<name>` | that of forward | other numbers that forward returns | *exact* |
    | `throughput/engine` | rows/s | the engine alone, measured here | *exact* |
    | `throughput/program` | rows/s | with the loader and the program, measured here | *exact* |
    | `throughput/machine` | rows/s | `emulator.estimate` for the virtual system | *modelled* |
    | `memory/process` | MiB | resident memory of this process | *exact* |
    | `memory/engine` | MiB | weights, states and gradients of a replica | *exact* |
    | `memory/fullest_tile_of_ipu_<n>` | KiB | `emulator.tile_memory` | *modelled* |

    A loss is the mean over the micro-batches of an update with `OutputMode.All`. By default only
    the last micro-batch of a call is returned, and its loss is drawn.

    Args:
        model: wrapped model from `trainingModel`, or a Keras model that was made in the scope of a
            strategy. With several processes, each has a run.
        directory: folder of the runs, which is created if it does not exist.
        name: name of the run, by default that of `Options.modelName` or of the model's class. A
            name that exists already gets a number.

    Returns:
        The log. Close it at the end, or use it in a `with` statement. Its `writer` is PyTorch's
        `SummaryWriter`, for scalars of your own.

    Raises:
        ImportError: TensorBoard is not installed; it is the extra `tensorboard`.
        OSError: the folder cannot be created.
        TypeError: `model` is not a wrapped training model, or `directory` is not a path. `fit` of
            a Keras model raises it if its optimizer runs by Keras's own formula.
        ValueError: `directory` has a character that no path can contain.
    """
    parent = given_path(directory, "directory")
    follow = None if isinstance(model, PoplarExecutor) else getattr(model, FOLLOW, None)
    if follow is not None:
        return _log_of_programs(follow, parent, name or model.name)
    executor = wrapped(model)
    if not executor._training:
        raise TypeError(
            "emulator.log_training needs a training model, because an inference model has no "
            "updates. Add values of an evaluation to the log of the training: "
            "log.writer.add_scalar('accuracy', value, log.num_updates)."
        )
    log = TrainingLog(parent, file_name(name or _run_name(executor), "model"))
    _listen(log, executor)
    log.at_close = lambda: executor._on_device.measurement.ignore(log)
    return log


def _log_of_programs(follow: Any, parent: Path, name: str) -> TrainingLog:
    """Returns a log of all executors that train a model of another front end."""
    log, followed = TrainingLog(parent, file_name(name, "model")), list[PoplarExecutor]()
    log.loss_output = 0

    def begin(executor: PoplarExecutor) -> None:
        if not executor._training:
            raise TypeError(
                "emulator.log_training cannot follow this training, because its optimizer runs by "
                "Keras's own formula, without an update that the emulator knows. Log in a callback "
                "of fit: log.writer.add_scalar('loss', logs['loss'], epoch)."
            )
        followed.append(executor)
        _listen(log, executor)

    def end() -> None:
        stop()
        for executor in followed:
            executor._on_device.measurement.ignore(log)

    stop = follow(begin)
    log.at_close = end
    return log


def _listen(log: TrainingLog, executor: PoplarExecutor) -> None:
    on_device = executor._on_device
    log.times = on_device.times
    with on_device.device_lock:
        on_device.measurement.listen(log)


def _run_name(model: PoplarExecutor) -> str:
    """Returns the name of a model's run; with several processes it ends with their number."""
    options, kind = model.options, type(model.model)
    if is_wrapped(model.model):
        kind = kind.__mro__[1]  # The user's class.
    name = options("model_name") if options.exists("model_name") else kind.__name__
    processes = options.Distributed
    part = f"_process_{processes.processId}" if processes.numProcesses > 1 else ""
    return f"{name}{part}"
