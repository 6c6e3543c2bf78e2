"""Files in the cache's folder with the tensor metadata of results from a trace.

A process that records a model reads from the file the metadata that PyTorch computed when the model
was first compiled. The name of the file depends only on facts known before `forward` runs, so
another model may find a file with some of its operations or none. The metadata are valid for any
model, because each text holds everything that the metadata depend on.
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
from poptorch_emu.trace.capture.tracer import Forward
from poptorch_emu.trace.fakes.result_metadata import ResultMetadata, from_json, to_json
from poptorch_emu.trace.model_state.module_state import host_tensors
from poptorch_emu.version import __version__

_SUFFIX = ".metadata"
_SECTION = "results"


def path_of(
    config: CompileConfig, model: torch.nn.Module, tensors: Sequence[torch.Tensor]
) -> Path | None:
    """Returns the path of the metadata of `model` for these inputs; None without a cache.

    Raises:
        Error: the types of the model's parameters are not known yet.
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
    """Returns the metadata in a file; empty if the file cannot be used."""
    sections = {} if path is None else folder.read(path)
    if path is None or not sections:
        return {}
    try:
        return from_json(sections.get(_SECTION, b""), str(path))
    except Error as fault:
        folder.warn_of_file(path, fault)
    return {}


def keep(path: Path | None, forward: Forward) -> None:
    """Writes new metadata to a file; a failure causes a warning."""
    if path is not None and forward.new_metadata:
        folder.write(path, {_SECTION: to_json(forward.new_metadata)})
