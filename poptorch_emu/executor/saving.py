"""Executables as files: saving a compiled model, and taking what was compiled from a file.

A file holds the executable, which is data, and behind it a pickle: the model, the options and the
optimiser are the user's objects, and PyTorch has no other form for them. Unpickling runs code that
the file names, so only files from a source one trusts may be loaded.
"""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from poptorch_emu.compile.compiler import MakeExecutable, load_model
from poptorch_emu.compile.executable import Executable
from poptorch_emu.compile.stored.container import Container, pack, unpack, write_whole
from poptorch_emu.compile.stored.executable_file import to_sections
from poptorch_emu.errors import Error, make_error, require
from poptorch_emu.log import logger
from poptorch_emu.optim.device_state import OptimizerLink
from poptorch_emu.options import Options
from poptorch_emu.runtime.arguments import Arguments
from poptorch_emu.runtime.session import Session
from poptorch_emu.version import __version__

_METADATA = "metadata"
_PROTOCOL = 4
_DEFAULT_NAME = "model.poptorch"


class Wrapper(Protocol):
    """What is needed of a `PoplarExecutor`."""

    _arguments: Arguments | None
    _options: Options
    _optimizer_link: OptimizerLink | None
    _rng_state: list[int] | None
    _session: Session | None
    _training: bool
    _user_model: torch.nn.Module

    def _compiled(self) -> Executable: ...
    def _compile(self, arguments: Arguments, make: MakeExecutable) -> None: ...
    def copyWeightsToHostIfNeeded(self) -> bool:
        """Brings the weights back from the device if they are newer there."""

    def isCompiled(self) -> bool:
        """Returns whether there is an executable."""

    @property
    def rng_state(self) -> list[int]:
        """The state of the random numbers on the device that is, or was, attached."""


def save_executable(
    executor: Wrapper, filename: str | Path, export_model: bool, save_rng_state: bool
) -> None:
    """Writes a compiled model to a file.

    Args:
        executor: compiled.
        filename: folders above it are made; a folder gets a file "model.poptorch".
        export_model: whether the user's model and optimiser are pickled into the file too.
        save_rng_state: whether the state of the random numbers is.

    Raises:
        AssertionError: a folder of that name is a file.
        Error: the executor is not compiled, or an object cannot be pickled.
    """
    executable = executor._compiled()
    path = _path_to_save(Path(filename))
    metadata = _pickled(_metadata(executor, export_model, save_rng_state))
    write_whole(path, pack({**to_sections(executable), _METADATA: metadata}))


def load_executable(executor: Wrapper, filename: str | Path) -> None:
    """Gives `executor` the executable in a file.

    Raises:
        Error: the executor is compiled already; the file is damaged, of another version, or of
            another model.
    """
    if executor.isCompiled():
        raise make_error(
            f"{filename} cannot be loaded: the model is compiled already. Call destroy() first."
        )
    container = read(filename)
    fault = version_fault(container, filename)
    if fault:
        raise make_error(fault)
    inputs = pickle.loads(metadata_of(container, filename))["executable_inputs"]
    executor._compile(inputs, partial(load_model, container.sections, str(filename)))


def importPoptorchMetadataFromFile(filename: str | Path) -> bytes:
    """Returns the pickle in a saved file, as bytes; nothing is unpickled (exact).

    Raises:
        Error: the file is damaged, or is not one that `save` wrote.
    """
    return metadata_of(read(filename), filename)


def read(filename: str | Path) -> Container:
    """Returns the sections of a file, after checking that it is whole.

    Raises:
        Error: it is no executable, cut short or damaged.
    """
    return unpack(Path(filename).read_bytes(), str(filename))


def version_fault(container: Container, filename: str | Path) -> str:
    """Returns what is wrong with the version of a file, "" if nothing is."""
    if container.is_of_this_version:
        return ""
    return (
        f"Invalid file {filename}: PopTorch version mismatch: the file was made by version "
        f"{container.version} with PyTorch {container.torch_version}, and this is version "
        f"{__version__}. Export the model again."
    )


def metadata_of(container: Container, filename: str | Path) -> bytes:
    """Returns the pickle in a file.

    Raises:
        Error: there is none.
    """
    if _METADATA not in container.sections:
        raise make_error(
            f"Invalid file {filename}: it holds an executable of the cache, not a saved model. "
            "Give a file that save() or compileAndExport() wrote."
        )
    return container.sections[_METADATA]


def _path_to_save(path: Path) -> Path:
    if path.is_dir():
        path = path / _DEFAULT_NAME
        logger.warning("save(): %s is a directory, saving model to %s", path.parent, path)
    for folder in path.parents:
        require(
            folder.is_dir() or not folder.exists(),
            f"{path} cannot be written: {folder} is a file, not a directory. Choose another name.",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _metadata(executor: Wrapper, export_model: bool, save_rng_state: bool) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "version": __version__,
        "executable_inputs": executor._arguments,
        "options": executor._options,
    }
    if export_model:
        executor.copyWeightsToHostIfNeeded()
        link = executor._optimizer_link
        metadata.update(
            training=executor._training,
            model=executor._user_model,
            optimizer=link.optimizer if link else None,
            optimizer_state=link.saved_state(executor._session) if link else None,
        )
    if save_rng_state and (executor._session is not None or executor._rng_state is not None):
        metadata["rng_state"] = executor.rng_state
    return metadata


def _pickled(metadata: dict[str, Any]) -> bytes:
    try:
        return pickle.dumps(metadata, protocol=_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as cause:
        raise _unpicklable(cause) from cause


def _unpicklable(cause: Exception) -> Error:
    return make_error(
        f"The model, its inputs, options or optimizer cannot be pickled: {cause}. Define classes "
        "and functions at the top of a module, or save with export_model=False."
    )
