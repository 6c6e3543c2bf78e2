"""Annotated models for exported pipelines, and processes that run their stages."""

from __future__ import annotations

import os
import pickle
import socket
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from support.exported_networks import Biased, Cnn, Decoder, Mlp, Tied, Transformer, UNet
from support.forked_programs import ForkedProgram, end
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import poptorch_emu as poptorch
from poptorch_emu import emulator

NUM_MICRO_BATCHES = 8
NUM_UPDATES = 2
# Tables for which PyTorch has no class.
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

    def executor(
        self,
        num_ipus: int,
        order: str = "grouped",
        optimizer: str = "",
        num_replicas: int = 1,
        is_mean: bool = True,
    ) -> Any:
        """Returns a new model with fixed initial weights, ready to be compiled or called."""
        torch.manual_seed(5)
        model = self.make(num_ipus)
        options = poptorch.Options()
        options.Training.gradientAccumulation(NUM_MICRO_BATCHES)
        options.replicationFactor(num_replicas)
        if not is_mean:
            kind = poptorch.ReductionType.Sum
            options.Training.accumulationAndReplicationReductionType(kind)
        options.outputMode(poptorch.OutputMode.All)
        options.showCompilationProgressBar(False)
        options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu))
        emulator.set_schedule(options, OWN_SCHEDULES.get(order, order))
        made = make_optimizer(optimizer or self.optimizer, model)
        return poptorch.trainingModel(model, options, made)

    def batches(self, num_replicas: int = 1) -> list[Batch]:
        """Returns the data of all updates, the same in every call."""
        torch.manual_seed(6)
        return [self.batch(2 * NUM_MICRO_BATCHES * num_replicas) for _ in range(NUM_UPDATES)]


FAMILIES = {
    "mlp": Family(Mlp, _classes(8), "SGD"),
    "cnn": Family(Cnn, _classes(1, 8, 8), "Adam"),
    "transformer": Family(Transformer, _tokens, "AdamW"),
    "tied": Family(Tied, _tokens, "AdamW"),
    "decoder": Family(Decoder, _tokens, "AdamW"),
    "biased": Family(Biased, _classes(8), "SGD"),
    "unet": Family(UNet, _classes(8), "SGD"),
}


OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD": ("SGD", {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    "Adam": ("Adam", {"lr": 0.01}),
    "AdamW": ("AdamW", {"lr": 0.01}),
    "clipped": ("AdamW", {"lr": 0.01, "max_grad_norm": 0.05}),
    # Rules that `torch.optim` lacks, or defines differently.
    "LAMB": ("LAMB", {"lr": 0.01}),
    "LAMB without bias correction": ("LAMB", {"lr": 0.01, "bias_correction": False}),
    "damped": ("SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.5}),
    "TensorFlow's": ("RMSprop", {"lr": 0.01, "momentum": 0.5, "use_tf_variant": True}),
    "half states": ("Adam", {"lr": 0.01, "first_order_momentum_accum_type": torch.float16}),
}
MAX_GRAD_NORM = "max_grad_norm"


def make_optimizer(
    name: str, model: nn.Module, module: Any = poptorch.optim
) -> torch.optim.Optimizer:
    """Returns an optimiser of `OPTIMIZERS`, by default one of ours, with two groups."""
    class_name, arguments = OPTIMIZERS[name]
    if module is torch.optim:
        arguments = {key: value for key, value in arguments.items() if key != MAX_GRAD_NORM}
    first, *others = model.parameters()
    groups = [{"params": [first], "lr": 0.02}, {"params": others}]
    kind: Any = getattr(module, class_name)
    return kind(groups, **arguments)


@dataclass(frozen=True)
class Case:
    """A training run: a model, a number of stages, and a schedule.

    Attributes:
        optimizer: name in `OPTIMIZERS`; by default the family's.
        is_wrapped: whether `DistributedDataParallel` sums over the replicas.
        is_mean: whether gradients are averaged.
    """

    family: str
    num_stages: int
    kind: str | None = None
    order: str = "grouped"
    optimizer: str = ""
    num_replicas: int = 1
    is_wrapped: bool = False
    is_mean: bool = True

    def __str__(self) -> str:
        """Returns the differences to a grouped pipeline of the family, for the names of tests."""
        parts = [self.family, self.num_stages, self.kind, self.order, self.optimizer]
        parts += [f"{self.num_replicas} replicas"] * (self.num_replicas > 1)
        parts += ["wrapped"] * self.is_wrapped + ["sum"] * (not self.is_mean)
        return "-".join(str(part) for part in parts if part)

    def executor(self) -> Any:
        """Returns the model, ready to be compiled or called."""
        return FAMILIES[self.family].executor(
            self.num_stages, self.order, self.optimizer, self.num_replicas, self.is_mean
        )

    def batches(self) -> list[Batch]:
        """Returns the data of all updates."""
        return FAMILIES[self.family].batches(self.num_replicas)


def train_on_emulator(case: Case) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Returns all losses, replica by replica, and the weights at the end."""
    executor = case.executor()
    losses: list[torch.Tensor] = []
    for batch in case.batches():
        result = executor(*batch)
        losses.append(result[-1] if isinstance(result, (list, tuple)) else result)
    by_replica = torch.cat(losses).view(-1, case.num_replicas).T
    state = {key: value.clone() for key, value in tensors_of(executor.model).items()}
    executor.destroy()
    return by_replica.flatten().tolist(), state


def tensors_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Returns the tensors that a stage saves of a model: each weight under its first name."""
    names = model.state_dict().keys()
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {key: value.detach() for key, value in named.items() if key in names}


def train_plain(case: Case) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Returns losses and weights of a plain loop of PyTorch, where annotations have no effect.

    Stages and replicas sum over micro-batches before they sum over each other. Therefore each use
    of a shared weight has its own copy here, and each replica its own loop.
    """
    family = FAMILIES[case.family]
    torch.manual_seed(5)
    model = family.make(case.num_stages)
    optimizer = make_optimizer(case.optimizer or family.optimizer, model, torch.optim)
    copies = _untie(model)
    losses: list[list[float]] = [[] for _ in range(case.num_replicas)]
    for batch in case.batches():
        sums: list[dict[str, torch.Tensor]] = []
        for replica in range(case.num_replicas):
            model.zero_grad()
            parts = zip(*(tensor.chunk(_num_parts(case)) for tensor in batch), strict=True)
            for inputs in list(parts)[replica :: case.num_replicas]:
                result = model(*inputs)
                loss = result[-1] if isinstance(result, tuple) else result
                loss.backward()
                losses[replica].append(loss.item())
            read = {key: p for key, p in model.named_parameters() if p.grad is not None}
            sums.append({key: p.grad for key, p in read.items()})
        for name, parameter in read.items():
            parameter.grad = sum(each[name] for each in sums)
            parameter.grad /= _num_parts(case) if case.is_mean else 1
        for owner, copy in copies:
            if copy.grad is not None:
                owner.grad = copy.grad if owner.grad is None else owner.grad + copy.grad
        _, arguments = OPTIMIZERS[case.optimizer or family.optimizer]
        if MAX_GRAD_NORM in arguments:
            grouped = [p.grad for group in optimizer.param_groups for p in group["params"]]
            owned = [gradient for gradient in grouped if gradient is not None]
            norm = torch.nn.utils.get_total_norm(owned)
            for gradient in owned:
                gradient *= torch.clamp(arguments[MAX_GRAD_NORM] / norm, max=1.0)
        optimizer.step()
        for owner, copy in copies:
            copy.data.copy_(owner)
    return sum(losses, []), model.state_dict()


def _num_parts(case: Case) -> int:
    return NUM_MICRO_BATCHES * case.num_replicas


def _untie(model: nn.Module) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """Gives each later use of a shared weight a copy; returns owners and copies in order."""
    seen: dict[nn.Parameter, nn.Parameter] = {}
    copies = []
    for name, parameter in list(model.named_parameters(remove_duplicate=False)):
        if parameter in seen:
            holder, _, last = name.rpartition(".")
            copy = nn.Parameter(parameter.detach().clone())
            setattr(model.get_submodule(holder), last, copy)
            copies.append((parameter, copy))
        seen[parameter] = parameter
    return copies


def train_exported(case: Case, device: str = "cpu") -> dict[str, Any]:
    """Trains this process's stages; returns losses, weights and the values that were sent."""
    executor, batches = case.executor(), case.batches()
    executor.compile(*batches[0])
    pipeline = emulator.export_pipeline(executor)
    own = pipeline.own_stages(kind=case.kind)
    modules: list[Any] = [None] * len(own)
    if case.is_wrapped:
        group = pipeline.replica_group()
        modules = [
            DistributedDataParallel(pipeline.stage_module(i), None, process_group=group)
            for i in own
        ]
    stages = [
        pipeline.stage(index, device, module=module, kind=case.kind)
        for index, module in zip(own, modules, strict=True)
    ]
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
    plain = [stage.submod.module if case.is_wrapped else stage.submod for stage in stages]
    weights = [module.state_dict() for module in plain]
    fresh = FAMILIES[case.family].make(case.num_stages)
    pipeline.load_into(fresh, [stage.submod for stage in stages])
    executor.destroy()
    loaded = fresh.state_dict()
    return {
        "losses": losses,
        "weights": [{key: value.cpu() for key, value in state.items()} for state in weights],
        "loaded": {key: loaded[key] for state in weights for key in state},
        "schedule": type(schedule).__name__,
        "optimizer": type(optimizers[0]).__name__,
    }


def run_in_processes(
    num_processes: int,
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
    folder: Path,
    *,
    is_group: bool = True,
) -> list[Any]:
    """Returns the results of `work(*arguments)` in each of several processes.

    The processes have the variables of torchrun.

    Args:
        num_processes: number of processes.
        work: function that the processes can import.
        arguments: arguments of `work`.
        folder: folder for the results.
        is_group: whether the processes form a group with Gloo before `work` runs.
    """
    folder = Path(tempfile.mkdtemp(dir=folder))
    (folder / "work").write_bytes(pickle.dumps((sys.path, pickle.dumps((work, arguments)))))
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    common["WORLD_SIZE"] = str(num_processes)
    words = ["-c", _PROGRAM, str(folder), str(is_group)]
    programs = [
        ForkedProgram(words, {**common, "RANK": str(rank)}, merges_errors=True)
        for rank in range(num_processes)
    ]
    try:
        ended = [(program.communicate()[0], program.wait()) for program in programs]
    finally:
        end(programs)
    assert all(status == 0 for _, status in ended), "\n".join(text for text, _ in ended)
    return [torch.load(folder / f"result_{rank}.pt") for rank in range(num_processes)]


def free_port() -> int:
    """Returns an unused port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# The pickled path is loaded first, because the function is imported from it.
_PROGRAM = """
import pathlib, pickle, sys
folder, is_group = pathlib.Path(sys.argv[1]), sys.argv[2] == "True"
with (folder / "work").open("rb") as file:
    sys.path[:], pickled = pickle.load(file)
from support.exported_models import do_in_process
do_in_process(folder, is_group, *pickle.loads(pickled))
"""


def do_in_process(
    folder: Path, is_group: bool, work: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    """Saves the result of `work(*arguments)` as this process's result."""
    torch.set_num_threads(1)
    file = folder / f"result_{os.environ['RANK']}.pt"
    if is_group:
        dist.init_process_group("gloo")
    try:
        torch.save(work(*arguments), file)
        if is_group:
            dist.barrier()
    finally:
        if is_group:
            dist.destroy_process_group()
