"""Random checks of inference, of several wrappers of the same parts, and of replica groups."""

from __future__ import annotations

import copy
import random
from dataclasses import replace

import torch
from fuzz.case import draw
from fuzz.parts import PLAIN, Model
from support.helpers import plain_step

import poptorch_emu as poptorch
from poptorch_emu.config import group_of_replica
from poptorch_emu.enums import CommGroupType, VariableRetrievalMode


def check_inference(seed: int) -> str:
    """Compares the outputs of an inference model with the plain one, micro-batch by micro-batch."""
    case = draw(seed, "OnHost", "OnHost")
    # Enough micro-batches for a pipeline with one stage for each part.
    case = replace(case, accumulation=1, iterations=case.iterations + len(case.parts))
    model = case.model()
    plain = copy.deepcopy(model)
    inference = poptorch.inferenceModel(model, case.options())
    for index in range(2):
        batch = case.batch(index)
        output, loss = inference(*batch)
        pieces = zip(*(value.split(case.rows) for value in batch), strict=True)
        with torch.no_grad():
            expected = [plain(*piece) for piece in pieces]
        wanted = torch.cat([value for value, _ in expected])
        torch.testing.assert_close(output, wanted, rtol=1e-3, atol=2e-5)
        losses = torch.stack([value for _, value in expected])
        torch.testing.assert_close(loss.reshape(-1), losses, rtol=1e-3, atol=2e-5)
    return str(case)


def check_wrappers(seed: int) -> str:
    """Trains and runs two models that have the same parts in different orders, in turns."""
    choice = random.Random(seed)
    case = replace(draw(seed, has_replicas=False), accumulation=1, iterations=1, strategy="sharded")
    names = tuple(name for name in case.parts if name in PLAIN)
    case = replace(case, parts=names, ipus=(0,) * len(names), off_chip=())
    first = case.model()
    second = Model(names, case.ipus, case.width)
    second.parts = torch.nn.ModuleList(reversed(first.parts))
    models = (first, second)
    plain = copy.deepcopy(models)
    trainers, references, observers = [], [], []
    for model, twin in zip(models, plain, strict=True):
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        trainers.append(poptorch.trainingModel(model, case.options(), optimizer))
        observers.append(poptorch.inferenceModel(model, case.options()))
        references.append(torch.optim.SGD(twin.parameters(), lr=0.05, momentum=0.9))
    done = []
    for index in range(6):
        which, batch = choice.randrange(2), case.batch(index)
        done.append((choice.choice(["train", "look"]), which))
        if done[-1][0] == "train":
            losses = trainers[which](*batch)[1].reshape(-1)
            expected = plain_step(plain[which], references[which], batch, case.setting)
        else:
            losses = observers[which](*batch)[1].reshape(-1)
            expected = plain[which](*batch)[1].detach().reshape(-1)
        torch.testing.assert_close(losses, expected, rtol=1e-3, atol=2e-5)
    return f"{done} {case}"


def check_groups(seed: int) -> str:
    """Gives every group of replicas its own parameters; each group must train as its own model."""
    choice = random.Random(seed)
    replicas = choice.choice([2, 4])
    case = replace(draw(seed, has_replicas=False), replicas=replicas, iterations=1)
    # A single layer, because scalars cannot have groups and attributes of the wrapper hide names.
    case = replace(case, parts=("Linear",), ipus=(0,), strategy="sharded", cut=())
    size = choice.choice([size for size in (1, 2, 4) if replicas % size == 0])
    kind = choice.choice([CommGroupType.Consecutive, CommGroupType.Orthogonal])
    groups = group_of_replica(kind, size, replicas)
    twins = [torch.nn.Linear(case.width, case.width) for _ in range(max(groups) + 1)]
    model = Grouped(torch.stack([twin.weight.detach() for twin in twins]))
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    training = poptorch.trainingModel(model, case.options(), optimizer)
    training.weight.replicaGrouping(kind, size, VariableRetrievalMode.OnePerGroup)
    weights = [torch.nn.Parameter(twin.weight.detach().clone()) for twin in twins]
    reference = torch.optim.SGD(weights, lr=0.1, momentum=0.5)
    for index in range(2):
        batch = case.batch(index)
        losses = training(*batch)[1].reshape(-1)
        torch.testing.assert_close(losses, _grouped_step(weights, groups, reference, batch, case))
    training.destroy()
    torch.testing.assert_close(model.weight, torch.stack(weights), rtol=1e-3, atol=2e-5)
    return f"{kind} of {size}: {case}"


class Grouped(torch.nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight)

    def forward(self, x: torch.Tensor, wanted: torch.Tensor):
        with poptorch.Block("part0", ipu_id=0):
            x = torch.tanh(x @ self.weight.T) if self.weight.dim() == 2 else x
        with poptorch.Block("loss", ipu_id=0):
            return x, torch.nn.functional.mse_loss(x, wanted)


def _grouped_step(weights, groups, optimizer, batch, case) -> torch.Tensor:
    optimizer.zero_grad()
    losses = []
    pieces = list(zip(*(value.split(case.rows) for value in batch), strict=True))
    for index, (x, wanted) in enumerate(pieces):
        weight = weights[groups[index % case.replicas]]
        loss = torch.nn.functional.mse_loss(torch.tanh(x @ weight.T), wanted)
        (loss / len(pieces)).backward()
        losses.append(loss.detach())
    optimizer.step()
    return torch.stack(losses)
