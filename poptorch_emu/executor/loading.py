"""`poptorch.load`: loads a saved model without the script that made it."""

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

    The program in the file is data, but the model, options and optimiser are pickles of PyTorch.
    Unpickling can run any code: **load only files from a source that you trust**. The classes of
    the model must be importable. `forward` is traced again, with its prints and hooks.

    Args:
        filename: file saved by the same version, with `export_model`.
        edit_opts_fn: function that may change options that do not affect the program, for example
            the random seed.

    Raises:
        AssertionError: the file has another version or no model.
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
    """Returns unfrozen options that allow a device, whatever the saved options are."""
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
