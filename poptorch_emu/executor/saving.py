"""Executables as files: saving a compiled model, and taking what was compiled from a file.

A file holds the executable, which is data, and behind it a pickle: the model, the options and the
optimiser are the user's objects, and PyTorch has no other form for them. Unpickling runs code that
the file names, so only files from a source one trusts may be loaded.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from poptorch_emu.compile.compiler import MakeExecutable, load_model
from poptorch_emu.compile.executable import Executable
from poptorch_emu.compile.stored.container import Container, pack, unpack
from poptorch_emu.compile.stored.executable_file import to_sections
from poptorch_emu.errors import make_error, require
from poptorch_emu.log import logger
from poptorch_emu.options import Options
from poptorch_emu.runtime.arguments import Arguments
from poptorch_emu.troubleshooting import Topic
from poptorch_emu.untrusted.files import open_regular, write_whole
from poptorch_emu.version import __version__

_METADATA = "metadata"
_PROTOCOL = 4
_DEFAULT_NAME = "model.poptorch"


@dataclass(frozen=True)
class ExportedModel:
    """What `poptorch.load` makes a wrapper of, beside the options.

    Attributes:
        training: whether it trains.
        model: the user's, with the newest weights.
        optimizer: for training.
        optimizer_state: the newest on the device, if a device ever made one.
    """

    training: bool
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer | None
    optimizer_state: dict[str, Any] | None


def path_to_save(filename: str | Path) -> Path:
    """Returns where to write: a folder gets a file "model.poptorch", folders above it are made.

    Raises:
        AssertionError: a folder of that name is a file.
    """
    path = Path(filename)
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


def save_executable(
    path: Path,
    executable: Executable,
    arguments: Arguments | None,
    options: Options,
    exported: ExportedModel | None,
    rng_state: list[int] | None,
) -> None:
    """Writes a compiled model to a file.

    Args:
        path: made by `path_to_save`.
        executable: what was compiled.
        arguments: for which it was.
        options: with which it was.
        exported: what is needed to run it without the user's script, if that is wanted.
        rng_state: the state of the random numbers, if it is wanted and there is one.

    Raises:
        Error: an object cannot be pickled.
    """
    metadata = {
        "version": __version__,
        "executable_inputs": arguments,
        "options": options,
        **({} if exported is None else vars(exported)),
        **({} if rng_state is None else {"rng_state": rng_state}),
    }
    write_whole(path, pack({**to_sections(executable), _METADATA: _pickled(metadata)}))


def open_executable(filename: str | Path) -> tuple[Arguments, MakeExecutable]:
    """Returns for which arguments a file was compiled, and what finds its program.

    Raises:
        Error: the file is damaged or of another version.
    """
    container = read(filename)
    fault = version_fault(container, filename)
    if fault:
        raise make_error(fault)
    arguments: Arguments = pickle.loads(metadata_of(container, filename))["executable_inputs"]
    return arguments, partial(load_model, container.sections, str(filename))


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
        OSError: it is no regular file, or cannot be read.
    """
    with open_regular(Path(filename)) as file:
        return unpack(file.read(), str(filename))


def version_fault(container: Container, filename: str | Path) -> str:
    """Returns what is wrong with the version of a file, "" if nothing is."""
    if container.is_of_this_version:
        return ""
    return (
        f"Invalid file {filename}: PopTorch version mismatch: the file was made by version "
        f"{container.version} with PyTorch {container.torch_version}, and this is version "
        f"{__version__}. Export the model again; {Topic.INVALID_FILE}"
    )


def metadata_of(container: Container, filename: str | Path) -> bytes:
    """Returns the pickle in a file.

    Raises:
        Error: there is none.
    """
    if _METADATA not in container.sections:
        raise make_error(
            f"Invalid file {filename}: it holds an executable of the cache, not a saved model. "
            f"Give a file that save() or compileAndExport() wrote; {Topic.INVALID_FILE}"
        )
    return container.sections[_METADATA]


def _pickled(metadata: dict[str, Any]) -> bytes:
    try:
        return pickle.dumps(metadata, protocol=_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as cause:
        raise make_error(
            f"The model, its inputs, options or optimizer cannot be pickled: {cause}. Define "
            "classes and functions at the top of a module, or save with export_model=False."
        ) from cause
