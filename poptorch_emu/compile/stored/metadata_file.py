"""The tensor metadata of results that a trace found out, in a file of the cache's folder.

A process that is going to record a model finds there what PyTorch made of each operation when the
model was compiled. The file's name tells what is known before `forward` is recorded, which is less
than a program depends on: another model of this name finds some of its operations there, or none.
What is found is right for any model, since the texts say all that the metadata depends on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch

from poptorch_emu.compile.stored import folder
from poptorch_emu.config import CompileConfig
from poptorch_emu.errors import Error
from poptorch_emu.ir.text import type_text
from poptorch_emu.trace.module_state import host_tensors
from poptorch_emu.trace.result_metadata import ResultMetadata, from_json, to_json
from poptorch_emu.trace.tracer import Forward
from poptorch_emu.version import __version__

_SUFFIX = ".metadata"
_SECTION = "results"


def path_of(
    config: CompileConfig, model: torch.nn.Module, tensors: Sequence[torch.Tensor]
) -> Path | None:
    """Returns where the metadata of `model`, compiled for these inputs, is kept.

    Raises:
        Error: the types of its parameters are not known yet.
    """
    if config.cache_dir is None:
        return None
    cls = type(model)
    parts = [
        __version__,
        torch.__version__,
        f"{cls.__module__}.{cls.__qualname__}",
        str(config.is_training),
        str(config.batch_factor),
        *map(type_text, tensors),
        *[f"{tensor.name} {type_text(tensor.value)}" for tensor in host_tensors(model)],
    ]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return Path(config.cache_dir) / f"{digest}{_SUFFIX}"


def find(path: Path | None) -> dict[str, ResultMetadata]:
    """Returns the metadata in a file; none, if the file cannot be used."""
    sections = {} if path is None else folder.read(path)
    if path is None or not sections:
        return {}
    try:
        return from_json(sections.get(_SECTION, b""), str(path))
    except Error as fault:
        folder.warn_of_file(path, fault)
    return {}


def keep(path: Path | None, forward: Forward) -> None:
    """Writes what was found out; where that fails, a warning says so."""
    if path is not None and forward.new_metadata:
        folder.write(path, {_SECTION: to_json(forward.new_metadata)})
