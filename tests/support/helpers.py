"""Comparison of an emulated training run with the equivalent plain PyTorch loop."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from support.models import FAMILIES

import poptorch_emu as poptorch

Batch = tuple[torch.Tensor, ...]


@dataclass
class Setting:
    """A way to run a model: strategy, accumulation and device iterations."""

    strategy: str = "pipelined"
    accumulation: int = 1
    iterations: int = 1
    replicas: int = 1

    def options(self) -> poptorch.Options:
        options = poptorch.Options()
        options.deviceIterations(self.iterations)
        options.replicationFactor(self.replicas)
        options.Training.gradientAccumulation(self.accumulation)
        options.outputMode(poptorch.OutputMode.All)
        options.showCompilationProgressBar(False)
        options.randomSeed(1)
        kinds = {
            "pipelined": poptorch.PipelinedExecution,
            "sharded": poptorch.ShardedExecution,
        }
        options.setExecutionStrategy(kinds[self.strategy](poptorch.AutoStage.SameAsIpu))
        return options

    @property
    def num_micro_batches(self) -> int:
        return self.accumulation * self.iterations * self.replicas


def assert_near(actual: torch.Tensor, expected: torch.Tensor, name: str) -> None:
    """Compares values of the engine with PyTorch's, within the rounding of a few updates.

    Their bits differ on some processors, because the engine adds products to sums inside a kernel,
    and autograd adds them afterwards.
    """
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6, msg=lambda m: f"{name}: {m}")


def plain_step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    setting: Setting,
    max_grad_norm: float = math.inf,
) -> torch.Tensor:
    """Runs the equivalent of one call of a training model; returns the losses of micro-batches.

    Micro-batches are consumed step-major with the replica innermost. Gradients are averaged over
    accumulation and replicas, then clipped by their global norm, with one update for each device
    iteration.
    """
    rows = batch[0].size(0) // setting.num_micro_batches
    pieces = [tensor.split(rows) for tensor in batch]
    per_update = setting.accumulation * setting.replicas
    losses = []
    for index in range(setting.num_micro_batches):
        if index % per_update == 0:
            optimizer.zero_grad()
        _, loss = model(*(piece[index] for piece in pieces))
        (loss / per_update).backward()
        losses.append(loss.detach())
        if index % per_update == per_update - 1:
            if math.isfinite(max_grad_norm):
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
            optimizer.step()
    return torch.stack(losses)


def assert_same_training(
    model: torch.nn.Module,
    make_batch: Callable[[int], Batch],
    setting: Setting,
    *,
    num_updates: int = 10,
    rows: int = 2,
    make_optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    max_grad_norm: float = math.inf,
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> None:
    """Trains a copy of `model` on virtual IPUs and another in plain PyTorch; both must agree.

    The model returns (output, loss). The test compares the losses of every call, and all parameters
    and floating-point buffers at the end.
    """
    if make_optimizer is None:

        def make_optimizer(parameters, module=torch.optim):
            return module.SGD(parameters, lr=0.05, momentum=0.9)

    emulated, plain = copy.deepcopy(model), copy.deepcopy(model)
    optimizer = make_optimizer(plain.parameters(), torch.optim)
    training = poptorch.trainingModel(
        emulated,
        setting.options(),
        make_optimizer(emulated.parameters(), poptorch.optim),
    )
    for _ in range(-(-num_updates // setting.iterations)):
        batch = make_batch(rows * setting.num_micro_batches)
        _, losses = training(*batch)
        expected = plain_step(plain, optimizer, batch, setting, max_grad_norm)
        torch.testing.assert_close(losses.reshape(-1), expected, rtol=rtol, atol=atol)
    training.destroy()
    state = emulated.state_dict()
    for name, value in plain.state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(
                state[name], value, rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
            )


def assert_same_bits_for_any_workers(
    monkeypatch: pytest.MonkeyPatch, setting: Setting, options: poptorch.Options
) -> None:
    """Trains the same clipped model with one worker thread and with four; bits must be equal."""
    model = FAMILIES["mlp"].make(4)
    batch = FAMILIES["mlp"].batch(2 * setting.num_micro_batches)
    states = []
    for workers in ("1", "4"):
        monkeypatch.setenv("POPTORCH_EMU_WORKERS", workers)
        trained = copy.deepcopy(model)
        optimizer = poptorch.optim.Adam(trained.parameters(), lr=0.01, max_grad_norm=0.1)
        training = poptorch.trainingModel(trained, options.clone(), optimizer)
        for _ in range(3):
            training(*batch)
        training.destroy()
        states.append(trained.state_dict())
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name])
