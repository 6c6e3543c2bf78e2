"""Compiles operations to a library with TorchInductor, ahead of time, and keeps it on disk."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import logging
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from poptorch_emu.config import CompileConfig, EngineBackend
from poptorch_emu.environment import processor
from poptorch_emu.log import compiler_logger
from poptorch_emu.schedule.partition import Partition

# Raised when what is compiled, or how, changes; older libraries are left alone then.
_VERSION = 1
_FOLDER = "compiled"


class InductorCompiler:
    """Makes libraries in one folder, one for each graph that differs; a second run finds them.

    Attributes:
        num_threads: how many threads an operation may use. It is part of the code.
    """

    def __init__(self, cache_dir: str | None, num_threads: int) -> None:
        """Takes the executables' folder; without one, TorchInductor's own is used."""
        self.num_threads = num_threads
        self._cache_dir = cache_dir

    def library(self, graph: fx.Graph, inputs: Sequence[torch.Tensor]) -> Path | None:
        """Returns where the library of a graph lies; `None`, with a log line, if there is none.

        Args:
            graph: of functional ATen operations.
            inputs: tensors with the type and the shape of each input; they are contiguous.
        """
        path = self._folder() / f"{self._digest(graph, inputs)}.so"
        if path.exists():
            return path
        try:
            _compile(fx.GraphModule({}, graph), inputs, path, self.num_threads)
        except Exception as fault:  # Whatever a compiler of another project raises.
            reason = str(fault).strip().splitlines()
            compiler_logger.warning(
                "TorchInductor could not compile %d operations, which run one by one instead: %s",
                sum(node.op == "call_function" for node in graph.nodes),
                reason[0] if reason else type(fault).__name__,
            )
            return None
        return path

    def _folder(self) -> Path:
        if self._cache_dir is not None:
            return Path(self._cache_dir).absolute() / _FOLDER
        # Imported at the first use: it takes seconds.
        own = importlib.import_module("torch._inductor.runtime.cache_dir_utils").cache_dir()
        return Path(own) / "poptorch_emu" / _FOLDER

    def _digest(self, graph: fx.Graph, inputs: Sequence[torch.Tensor]) -> str:
        """Returns a name for what the library depends on."""
        shapes = [(str(value.dtype), tuple(value.shape)) for value in inputs]
        # TorchInductor makes code for this very processor.
        vectors = torch.backends.cpu.get_cpu_capability()
        host = (vectors, processor("model name"), processor("flags"))
        parts = (_VERSION, torch.__version__, host, self.num_threads, shapes, _text(graph))
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def compiler_of(config: CompileConfig, placed: Partition) -> InductorCompiler | None:
    """Returns the compiler that the options ask for; `None` where each operation runs by itself."""
    if config.engine_backend is not EngineBackend.INDUCTOR:
        return None
    if config.checks_floating_point or config.rounds_stochastically:
        compiler_logger.warning(
            "Operations run one by one, not compiled by TorchInductor: floating-point checks and "
            "stochastic rounding look at the result of each."
        )
        return None
    # As the engine runs them: see `runtime.threads.thread_counts`.
    num_virtual_ipus = config.replication_factor * (max(placed.ipu_ids) + 1)
    per_window = config.gradient_accumulation if config.is_training else config.device_iterations
    is_for_all_cores = num_virtual_ipus == 1 and per_window < len(os.sched_getaffinity(0))
    return InductorCompiler(config.cache_dir, torch.get_num_threads() if is_for_all_cores else 1)


def _text(graph: fx.Graph) -> list[Any]:
    """Returns the operations of a graph, whatever its nodes are called."""
    numbers = {node: index for index, node in enumerate(graph.nodes)}

    def numbered(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return f"%{numbers[value]}"
        if isinstance(value, (list, tuple)):
            return [numbered(item) for item in value]
        if isinstance(value, dict):
            return {key: numbered(item) for key, item in value.items()}
        return str(value)

    return [
        (node.op, str(node.target) if node.op == "call_function" else "", numbered(node.args))
        + ((numbered(node.kwargs),) if node.kwargs else ())
        for node in graph.nodes
    ]


def _compile(
    module: fx.GraphModule, inputs: Sequence[torch.Tensor], path: Path, num_threads: int
) -> None:
    """Writes the library; it appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # TorchInductor builds beside what it is told to write.
    draft = path.parent / f"{path.stem}.{os.getpid()}" / path.name
    options = {"aot_inductor.output_path": str(draft), "cpp.threads": num_threads}
    quiet = logging.getLogger("torch._inductor")
    level = quiet.level
    quiet.setLevel(logging.ERROR)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = torch._inductor.aot_compile(module, tuple(inputs), options=options)
        Path(str(made)).replace(path)
    finally:
        quiet.setLevel(level)
        with contextlib.suppress(OSError):
            for left in sorted(draft.parent.rglob("*"), reverse=True):
                left.rmdir() if left.is_dir() else left.unlink()
            draft.parent.rmdir()
