"""Saves a compiled model to a file, and loads the program of such a file.

A file holds the executable, which is data, and then a pickle of the model, the options and the
optimiser, because PyTorch has no other form for a user's objects. Unpickling can run any code, so
only files from a trusted source may be loaded.
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
from poptorch_emu.untrusted.files import given_path, open_regular, write_whole
from poptorch_emu.version import __version__

_METADATA = "metadata"
_PROTOCOL = 4
_DEFAULT_NAME = "model.poptorch"


@dataclass(frozen=True)
class ExportedModel:
    """Objects that `poptorch.load` makes a wrapper from, beside the options.

    Attributes:
        training: whether the wrapper trains.
        model: the user's model with the newest weights.
        optimizer: the user's optimiser; None in inference.
        optimizer_state: newest state on the device; None if no device has run.
    """

    training: bool
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer | None
    optimizer_state: dict[str, Any] | None


def path_to_save(filename: str | Path) -> Path:
    """Returns the path of the file ("model.poptorch" in a folder), and makes its folders.

    Raises:
        AssertionError: one of the folders is a file.
    """
    path = given_path(filename, "filename")
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
        path: path that `path_to_save` returned.
        executable: the compiled model.
        arguments: arguments of the compilation.
        options: options of the compilation.
        exported: objects for running the model without the user's script; None to omit them.
        rng_state: state of the random numbers; None to omit it.

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
    """Returns the arguments of the compilation in a file, and a function that loads its program.

    Raises:
        Error: the file is damaged or has another version.
    """
    container = read(filename)
    fault = version_fault(container, filename)
    if fault:
        raise make_error(fault)
    arguments: Arguments = pickle.loads(metadata_of(container, filename))["executable_inputs"]
    return arguments, partial(load_model, container.sections, str(filename))


def importPoptorchMetadataFromFile(filename: str | Path) -> bytes:
    """Returns the pickle in a saved file as bytes, without unpickling it (exact).

    Raises:
        Error: the file is damaged, or `save` did not write it.
    """
    return metadata_of(read(filename), filename)


def read(filename: str | Path) -> Container:
    """Returns the sections of a file, after checking that it is whole.

    Raises:
        Error: the file is not an executable, cut short or damaged.
        OSError: the file is not a regular file, or cannot be read.
    """
    with open_regular(given_path(filename, "filename")) as file:
        return unpack(file.read(), str(filename))


def version_fault(container: Container, filename: str | Path) -> str:
    """Returns the fault of a file's version, or ""."""
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
        Error: the file has no pickle.
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
