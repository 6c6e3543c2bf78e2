"""Runs some samples of one library in this process, and prints the outcome of each as JSON.

    python benchmarks/zoo/one_process.py LIBRARY NAME...

`__main__.py` starts this process, and starts a new one after a sample that ends it.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import faulthandler
import gc
import importlib
import importlib.metadata
import json
import os
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torchvision_schemas as torchvision_schemas  # before any library
from outcome import Outcome, inference, training
from sample import Library, Sample

import poptorch_emu as poptorch

LIBRARIES = {
    "transformers": "transformers_models",
    "torch_geometric": "geometric_models",
    "snntorch": "spiking_models",
    "timm": "timm_models",
    "torchvision": "torchvision_models",
    "diffusers": "diffusers_models",
    "monai": "monai_models",
    "x_transformers": "x_transformers_models",
}
_MEMORY_BYTES = 16 << 30
_MAX_PARAMETERS = 40_000_000


def library_of(name: str) -> Library:
    """Returns the models of a library that is installed."""
    library: Library = importlib.import_module(LIBRARIES[name]).LIBRARY
    return library


def _plain(_: Any) -> None:
    pass


def _guarded(options: poptorch.Options) -> None:
    poptorch.emulator.set_value_guards(options, max_programs=4)


def outcomes(make: Callable[[], Sample]) -> Iterator[tuple[str, Outcome]]:
    """Yields the outcome of each way to run a sample, with the name of the column."""
    try:
        sample = make()
        size = sum(value.numel() for value in sample.module.parameters())
        if size > _MAX_PARAMETERS:
            raise ValueError(f"{size} parameters are too many for this sweep.")
        copy.deepcopy(sample.module)  # Each run gets its own copy.
    except Exception as error:
        text = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
        yield "inference", Outcome("not compared: no configuration", text)
        return
    for name, run in (("inference", inference), ("training", training)):
        plain = run(sample, _plain)
        yield name, plain
        if (
            plain.is_measured
            and plain.kind != "equal"
            and hasattr(poptorch.emulator, "set_value_guards")
        ):
            yield f"{name}_guarded", run(sample, _guarded)


def main() -> None:
    """Prints one line of JSON for each sample."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    warnings.simplefilter("ignore")
    poptorch.setLogLevel("OFF")
    seconds, name, *models = sys.argv[1:]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Output of libraries is not a result.
    library = library_of(name)
    for model in models:
        faulthandler.dump_traceback_later(int(seconds), exit=True)
        torch.manual_seed(0)
        start = time.perf_counter()
        row = {"date": f"{datetime.date.today()}", "library": name, "model": model}
        row["version"] = importlib.metadata.version(name)
        with contextlib.redirect_stdout(sys.stderr):
            for column, outcome in outcomes(partial(library.make, model)):
                row |= {column: outcome.kind, f"{column}_detail": outcome.detail}
        row["seconds"] = f"{time.perf_counter() - start:.1f}"
        print(json.dumps(row), file=out, flush=True)
        gc.collect()
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
