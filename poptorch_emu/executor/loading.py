"""`poptorch.load`: a saved model, ready to run, without the script that made it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from poptorch_emu.enums import ConnectionType
from poptorch_emu.errors import require
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.executor.executor_contents import give_optimizer_state
from poptorch_emu.executor.factories import inferenceModel, trainingModel
from poptorch_emu.executor.saving import metadata_of, read, version_fault
from poptorch_emu.options import Options


def load(
    filename: str | Path, edit_opts_fn: Callable[[Options], Any] | None = None
) -> PoplarExecutor:
    """Returns the model of a file that `save` or `compileAndExport` wrote, ready to run (exact).

    The program in the file is data, but the model, options and optimiser are pickles of PyTorch:
    unpickling can run any code, so **load only files from a source you trust**. The classes of the
    model must be importable. `forward` is traced again; its prints and hooks happen again.

    Args:
        filename: saved by the same version, with `export_model`.
        edit_opts_fn: may change the options, as far as the program does not depend on them (the
            random seed, say).

    Raises:
        AssertionError: the file is of another version, or has no model in it.
        Error: the file is cut short, damaged, or does not fit the edited options.
    """
    container = read(filename)
    fault = version_fault(container, filename)
    require(not fault, fault)
    metadata = pickle.loads(metadata_of(container, filename))
    require(
        "model" in metadata,
        f"{filename} is a valid PopTorch file but was created with 'export_model=False': it holds "
        "no model. Wrap the model anew with poptorch.inferenceModel or poptorch.trainingModel, and "
        f'call poptorch_model.loadExecutable("{filename}") on the result.',
    )
    options = _online(metadata["options"])
    if edit_opts_fn is not None:
        edit_opts_fn(options)
    executor = _wrapped(metadata, options)
    executor.loadExecutable(filename)
    if "rng_state" in metadata and executor.isAttachedToDevice():
        executor.rng_state = metadata["rng_state"]
    if "random_seed" in metadata:
        executor.random_seed = metadata["random_seed"]  # type: ignore[attr-defined]
    return executor


def _online(options: Options) -> Options:
    """Returns options that can be changed and take a device, whatever they were saved with."""
    options._unfreeze()
    options.deleteIfExists("ipu_version")
    if options.connection_type == ConnectionType.Never.value:
        options.connectionType(ConnectionType.Always)
    return options


def _wrapped(metadata: dict[str, Any], options: Options) -> PoplarExecutor:
    if not metadata["training"]:
        return inferenceModel(metadata["model"], options)
    executor = trainingModel(metadata["model"], options, metadata["optimizer"])
    state = metadata["optimizer_state"]
    if state is not None:
        give_optimizer_state(executor, state)
    return executor
