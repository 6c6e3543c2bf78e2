"""Annotated models for exported pipelines, and processes that run their stages."""

from __future__ import annotations

import multiprocessing
import os
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator

NUM_MICRO_BATCHES = 8
NUM_UPDATES = 3
# Tables that PyTorch has no class for.
OWN_SCHEDULES = {
    "late weights": emulator.schedules.from_table(
        [
            [f"{stage}F{m}" for m in range(NUM_MICRO_BATCHES)]
            + [f"{stage}I{m}" for m in range(NUM_MICRO_BATCHES)]
            + [f"{stage}W{m}" for m in range(NUM_MICRO_BATCHES)]
            for stage in range(2)
        ]
    )
}
Batch = tuple[torch.Tensor, ...]


class Mlp(nn.Module):
    """A layer on each IPU; the first value skips to the end."""

    def __init__(self, num_ipus: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(num_ipus))
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        first = value = torch.tanh(self.layers[0](x))
        for ipu, layer in enumerate(list(self.layers)[1:], 1):
            poptorch.Block.start(f"ipu{ipu}", ipu_id=ipu)
            value = torch.relu(layer(value))
        logits = self.head(value + first)
        return logits, F.cross_entropy(logits, labels)


class Cnn(nn.Module):
    """Convolutions and a group norm; the mask is an integer that travels."""

    def __init__(self, num_ipus: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.middle = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(num_ipus - 1))
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        value = F.relu(self.norm(self.first(x)))
        is_large = value > 1.0
        for ipu, layer in enumerate(self.middle, 1):
            poptorch.Block.start(f"ipu{ipu}", ipu_id=ipu)
            value = F.relu(layer(value))
        value = F.max_pool2d(torch.where(is_large, value, 0.5 * value), 4)
        return F.cross_entropy(self.head(value.flatten(1)), labels)


class Transformer(nn.Module):
    """Token and position embeddings, then a block of attention on each IPU."""

    def __init__(self, num_ipus: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(16, 8)
        self.register_buffer("positions", torch.randn(4, 8))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
            for _ in range(num_ipus)
        )
        self.head = nn.Linear(8, 16)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> Any:
        value = self.tokens(tokens) + self.positions
        for ipu, block in enumerate(self.blocks):
            poptorch.Block.start(f"ipu{ipu}", ipu_id=ipu)
            value = block(value)
        logits = self.head(value)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def _classes(*shape: int) -> Callable[[int], Batch]:
    return lambda rows: (torch.randn(rows, *shape), torch.randint(0, 4, (rows,)))


def _tokens(rows: int) -> Batch:
    return torch.randint(0, 16, (rows, 4)), torch.randint(0, 16, (rows, 4))


@dataclass(frozen=True)
class Family:
    """A model over any number of IPUs, its data and its optimiser."""

    make: Callable[[int], nn.Module]
    batch: Callable[[int], Batch]
    optimizer: str

    def executor(self, num_ipus: int, order: str = "grouped") -> Any:
        """Returns a new model, always with the same weights, ready to be compiled or called."""
        torch.manual_seed(5)
        model = self.make(num_ipus)
        options = poptorch.Options()
        options.Training.gradientAccumulation(NUM_MICRO_BATCHES)
        options.outputMode(poptorch.OutputMode.All)
        options.showCompilationProgressBar(False)
        options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu))
        emulator.set_schedule(options, OWN_SCHEDULES.get(order, order))
        return poptorch.trainingModel(model, options, make_optimizer(self.optimizer, model))

    def batches(self) -> list[Batch]:
        """Returns the data of all updates, always the same."""
        torch.manual_seed(6)
        return [self.batch(2 * NUM_MICRO_BATCHES) for _ in range(NUM_UPDATES)]


FAMILIES = {
    "mlp": Family(Mlp, _classes(8), "SGD"),
    "cnn": Family(Cnn, _classes(1, 8, 8), "Adam"),
    "transformer": Family(Transformer, _tokens, "AdamW"),
}


def make_optimizer(
    name: str, model: nn.Module, module: Any = poptorch.optim
) -> torch.optim.Optimizer:
    """Returns an optimiser, by default of ours, with two groups."""
    arguments: dict[str, Any] = {"lr": 0.05} if name == "SGD" else {"lr": 0.01}
    if name == "SGD":
        arguments.update(momentum=0.9, weight_decay=0.01)
    first, *others = model.parameters()
    groups = [{"params": [first], "lr": 0.02}, {"params": others}]
    kind: Any = getattr(module, name)
    return kind(groups, **arguments)


@dataclass(frozen=True)
class Case:
    """One training: a model, on so many stages, by a schedule."""

    family: str
    num_stages: int
    kind: str | None = None
    order: str = "grouped"


def train_on_emulator(case: Case) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Returns all losses and the weights at the end."""
    family = FAMILIES[case.family]
    executor = family.executor(case.num_stages, case.order)
    losses: list[float] = []
    for batch in family.batches():
        result = executor(*batch)
        losses += (result[-1] if isinstance(result, (list, tuple)) else result).tolist()
    state = {key: value.clone() for key, value in executor.model.state_dict().items()}
    executor.destroy()
    return losses, state


def train_plain(case: Case) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Returns the same of a plain loop of PyTorch, whose modules ignore the annotations."""
    family = FAMILIES[case.family]
    torch.manual_seed(5)
    model = family.make(case.num_stages)
    optimizer = make_optimizer(family.optimizer, model, torch.optim)
    losses: list[float] = []
    for batch in family.batches():
        optimizer.zero_grad()
        parts = zip(*(tensor.chunk(NUM_MICRO_BATCHES) for tensor in batch), strict=True)
        for inputs in parts:
            result = model(*inputs)
            loss = result[-1] if isinstance(result, tuple) else result
            loss.backward()
            losses.append(loss.item())
        for parameter in model.parameters():
            parameter.grad /= NUM_MICRO_BATCHES
        optimizer.step()
    return losses, model.state_dict()


def train_exported(case: Case, device: str = "cpu") -> dict[str, Any]:
    """Trains this process's stages; returns losses, weights and what was sent."""
    family = FAMILIES[case.family]
    executor = family.executor(case.num_stages, case.order)
    batches = family.batches()
    executor.compile(*batches[0])
    pipeline = emulator.export_pipeline(executor)
    own = pipeline.own_stages(kind=case.kind)
    stages = [pipeline.stage(index, device, kind=case.kind) for index in own]
    schedule = pipeline.schedule(stages, case.kind)
    optimizers = [pipeline.optimizer(stage.submod) for stage in stages]
    losses: list[float] = []
    for batch in batches:
        for optimizer in optimizers:
            optimizer.zero_grad()
        found = pipeline.step(schedule, *batch)
        for optimizer in optimizers:
            optimizer.step()
        losses += [loss.item() for loss in found or ()]
    weights = [stage.submod.state_dict() for stage in stages]
    fresh = family.make(case.num_stages)
    pipeline.load_into(fresh, weights)
    executor.destroy()
    loaded = fresh.state_dict()
    return {
        "losses": losses,
        "weights": {key: value.cpu() for state in weights for key, value in state.items()},
        "loaded": {key: loaded[key] for state in weights for key in state},
        "schedule": type(schedule).__name__,
    }


def run_in_processes(
    num_processes: int, work: Callable[..., Any], arguments: tuple[Any, ...], folder: Path
) -> list[Any]:
    """Returns what `work(*arguments)` returns in each of several processes with Gloo.

    They come from one server that has loaded PyTorch already.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["poptorch_emu", "poptorch_emu.export.pipeline_runner"])
    port = free_port()
    folder = Path(tempfile.mkdtemp(dir=folder))
    processes = [
        context.Process(
            target=_in_process, args=(rank, num_processes, port, work, arguments, folder)
        )
        for rank in range(num_processes)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * num_processes
    return [torch.load(folder / f"result_{rank}.pt") for rank in range(num_processes)]


def free_port() -> int:
    """Returns a port of this machine that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _in_process(
    rank: int,
    num_processes: int,
    port: int,
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
    folder: Path,
) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=num_processes)
    try:
        torch.save(work(*arguments), folder / f"result_{rank}.pt")
        dist.barrier()
    finally:
        dist.destroy_process_group()
