"""What a trace found out about the forms of results, in a file of the cache's folder.

A process that is going to record a model finds there what PyTorch made of each operation when the
model was compiled. The file's name tells what is known before `forward` is recorded, which is less
than a program depends on: another model of this name finds some of its operations there, or none.
What is found is right for any model, since the texts say all that the forms depend on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch

from poptorch_emu.compile.stored.container import pack, unpack, write_whole
from poptorch_emu.config import CompileConfig
from poptorch_emu.errors import Error
from poptorch_emu.ir.text import type_text
from poptorch_emu.log import logger
from poptorch_emu.trace.module_state import host_tensors
from poptorch_emu.trace.result_forms import Forms, from_json, to_json
from poptorch_emu.trace.tracer import Forward
from poptorch_emu.version import __version__

_SUFFIX = ".forms"
_SECTION = "forms"


def path_of(
    config: CompileConfig, model: torch.nn.Module, tensors: Sequence[torch.Tensor]
) -> Path | None:
    """Returns where the forms of `model`, compiled for these inputs, are kept.

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


def find(path: Path | None) -> dict[str, Forms]:
    """Returns the forms in a file; none, if it cannot be used."""
    if path is None:
        return {}
    try:
        container = unpack(path.read_bytes(), str(path))
        if container.is_of_this_version:
            return from_json(container.sections.get(_SECTION, b""), str(path))
    except FileNotFoundError:
        pass
    except (Error, OSError) as fault:
        logger.warning("Executable cache: %s cannot be used and will be replaced. %s", path, fault)
    return {}


def keep(path: Path | None, forward: Forward) -> None:
    """Writes what was found out; where that fails, a warning says so."""
    forms = {} if path is None else forward.new_forms
    if path is None or not forms:
        return
    try:
        write_whole(path, pack({_SECTION: to_json(forms)}))
    except OSError as fault:
        logger.warning("Executable cache: the forms of results are not kept. %s", fault)
