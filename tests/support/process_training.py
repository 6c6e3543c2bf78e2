"""Trains small models in this process, one of several, and saves weights and losses.

Usage: process_training.py FOLDER CASE [CASE...]; a case is a key of `CASES`; `@R` after it gives
each process R replicas. Each process creates all rows and takes its own, so that any number of
processes trains on the same rows.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import poptorch_emu as poptorch
from poptorch_emu.companions import popdist
from poptorch_emu.companions.popdist import poptorch as popdist_poptorch
from poptorch_emu.companions.poptorch_experimental_addons import collectives

NUM_STEPS, ROWS, ACCUMULATION = 2, 2, 3

# Functions that each slow operation calls, on the engine's thread that runs it.
on_linger: list[Callable[[], None]] = []
_OPERATORS = torch.library.Library("process_test", "DEF")
_PAUSES = random.Random(os.getpid())  # Each process pauses differently.


def _linger(x: torch.Tensor) -> torch.Tensor:
    for each in tuple(on_linger):
        each()
    time.sleep(_PAUSES.uniform(0, 0.004))
    return x.clone()


def _linger_backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
    return torch.ops.process_test.linger(gradient)


_OPERATORS.define("linger(Tensor x) -> Tensor")
_OPERATORS.impl("linger", _linger, "CPU")
_OPERATORS.impl("linger", torch.empty_like, "Meta")
torch.library.register_autograd("process_test::linger", _linger_backward, lib=_OPERATORS)


class Model(torch.nn.Module):
    """Two layers, on one IPU or two.

    Each layer takes a random time if `lingers` is set; replicas exchange values between the layers
    if `exchange` is set.
    """

    def __init__(
        self,
        num_stages: int,
        dropout: float,
        is_half: bool,
        lingers: bool = False,
        exchanges: bool = False,
    ) -> None:
        super().__init__()
        self.exchanges = exchanges
        self.linger = torch.ops.process_test.linger if lingers else torch.nn.Identity()
        self.first = torch.nn.Linear(5, 7)
        self.second = torch.nn.Linear(7, 3)
        self.dropout = torch.nn.Dropout(dropout)
        if num_stages == 2:
            self.second = poptorch.BeginBlock(self.second, "second", ipu_id=1)
        if is_half:
            self.half()

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
        hidden = self.dropout(torch.tanh(self.linger(self.first(x))))
        if self.exchanges:
            hidden = self.exchanged(hidden)
        y = self.second(self.linger(hidden))
        if self.exchanges:
            y = y + self.exchanged(torch.sin(y))
        return y, poptorch.identity_loss(torch.nn.functional.mse_loss(y, target), "mean")

    def exchanged(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a mixture of all replicas' values of `x`, a different one on each replica."""
        count = popdist.getNumTotalReplicas()
        gathered = collectives.all_gather_cross_replica(x, count)
        pieces = collectives.all_to_all_single_cross_replica(gathered * x, count)
        total = collectives.all_reduce_cross_replica_sum(x, count)
        same = collectives.all_reduce_cross_replica_sum(x, count, insert_in_grad_graph=True)
        return x + 0.2 * (pieces.sum(0) + total + same) / count


def _sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, loss_scaling=4.0)


def _clipped(model: torch.nn.Module) -> torch.optim.Optimizer:
    return poptorch.optim.AdamW(model.parameters(), lr=0.05, max_grad_norm=0.3)


def _adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    return poptorch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)


def _lamb(model: torch.nn.Module) -> torch.optim.Optimizer:
    return poptorch.optim.LAMB(model.parameters(), lr=0.05)


def _plain(model: torch.nn.Module) -> torch.optim.Optimizer:
    return poptorch.optim.SGD(model.parameters(), lr=0.1, use_combined_accum=False)


Make = Callable[[torch.nn.Module], torch.optim.Optimizer]
# Name -> optimiser, number of stages, dropout, whether float16, option.
CASES: dict[str, tuple[Make, int, float, bool, str]] = {
    "sgd": (_sgd, 1, 0.0, False, ""),
    "sgd2": (_sgd, 2, 0.0, False, ""),
    "adamw": (_adamw, 1, 0.0, False, ""),
    "lamb2": (_lamb, 2, 0.0, False, ""),
    "clipped2": (_clipped, 2, 0.0, False, ""),
    "dropout": (_plain, 1, 0.4, False, ""),
    "half": (_sgd, 1, 0.0, True, ""),
    "rounding2": (_sgd, 2, 0.0, True, "stochastic rounding"),
    "loss scale": (_sgd, 2, 0.0, True, "automatic loss scaling"),
    "running mean": (_adamw, 1, 0.0, False, "mean"),
    "remote": (_adamw, 1, 0.0, False, "remote"),
    "lingering2": (_adamw, 2, 0.3, False, "lingering"),
    "exchanging": (_adamw, 1, 0.0, False, "exchanging"),
    "exchanging2": (_sgd, 2, 0.0, True, "exchanging"),
    "exchanging lingering2": (_adamw, 2, 0.3, False, "exchanging lingering"),
    "sharded exchanging2": (_adamw, 2, 0.0, False, "sharded exchanging"),
    "sharded": (_adamw, 1, 0.0, False, "sharded"),
    "sharded2": (_sgd, 2, 0.0, False, "sharded"),
    "sharded weights2": (_sgd, 2, 0.0, False, "sharded Weight"),
    "sharded states": (_adamw, 1, 0.0, False, "sharded Optimizer"),
    "sharded lamb2": (_lamb, 2, 0.0, False, "sharded"),
    "sharded lamb states": (_lamb, 1, 0.0, False, "sharded Optimizer"),
    "sharded clipped2": (_clipped, 2, 0.0, False, "sharded"),
    "sharded rounding2": (_sgd, 2, 0.0, True, "sharded stochastic rounding"),
    "sharded loss scale": (_sgd, 2, 0.0, True, "sharded automatic loss scaling"),
    "sharded mean": (_adamw, 1, 0.0, False, "sharded mean"),
    "sharded remote": (_adamw, 1, 0.0, False, "sharded remote"),
    "sharded lingering2": (_adamw, 2, 0.3, False, "sharded lingering"),
}
KINDS = ("Weight", "Optimizer", "Accumulator")


def options_for(option: str) -> poptorch.Options:
    """Returns the options of this process."""
    options = popdist_poptorch.Options()
    options.Training.gradientAccumulation(ACCUMULATION)
    options.deviceIterations(2)
    options.outputMode(poptorch.OutputMode.All)
    options.randomSeed(7)
    if "stochastic rounding" in option:
        options.Precision.enableStochasticRounding(True)
    if "automatic loss scaling" in option:
        options.Training.setAutomaticLossScaling(True)
    if "mean" in option:
        options.Training.setMeanAccumulationAndReplicationReductionStrategy(
            poptorch.MeanReductionStrategy.Running
        )
    locations = {}
    if "sharded" in option:
        cut = [kind for kind in KINDS if kind in option] or KINDS
        for kind in cut:
            location = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
            locations[kind] = location.minElementsForReplicatedTensorSharding(1)
    if "remote" in option:
        location = locations.setdefault("Accumulator", poptorch.TensorLocationSettings())
        location.useOnChipStorage(False).minElementsForOffChip(1)
    for kind, location in locations.items():
        getattr(options.TensorLocations, f"set{kind}Location")(location)
    return options


def rows_of_step(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> Any:
    """Returns this process's rows of a step, from [micro-batch, replica, row] of all, flattened."""
    local, first = popdist.getNumLocalReplicas(), popdist.getInstanceIndex()
    num_replicas = popdist.getNumTotalReplicas()
    everything = torch.randn((2 * ACCUMULATION, num_replicas, ROWS, *shape), generator=generator)
    mine = everything[:, first * local : (first + 1) * local]
    return mine.flatten(0, 2).to(dtype)


def tensors_of(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors in nested dictionaries, with their paths."""
    if isinstance(value, torch.Tensor):
        yield name, value.clone()
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from tensors_of(inner, f"{name}/{key}")


def train(case: str) -> dict[str, Any]:
    """Returns weights and losses after a few steps."""
    make, num_stages, dropout, is_half, option = CASES[case]
    torch.manual_seed(3)
    model = Model(num_stages, dropout, is_half, "lingering" in option, "exchanging" in option)
    optimizer = make(model)
    trainer = poptorch.trainingModel(model, options_for(option), optimizer)
    dtype = torch.half if is_half else torch.float
    generator = torch.Generator().manual_seed(5)
    losses = []
    for _ in range(NUM_STEPS):
        x = rows_of_step((5,), generator, dtype)
        target = rows_of_step((3,), generator, dtype)
        losses.append(trainer(x, target)[1].reshape(2 * ACCUMULATION, -1).clone())
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    states = dict(tensors_of(optimizer.state_dict()))
    trainer.destroy()
    return {"weights": weights, "losses": torch.stack(losses), "states": states}


def train_with_replicas(argument: str) -> dict[str, Any]:
    """Trains `CASE` or `CASE@R`."""
    case, _, local = argument.partition("@")
    if local:
        total, offset = (int(local) * n for n in (popdist.getNumInstances(), _INDEX))
        os.environ["POPDIST_NUM_LOCAL_REPLICAS"] = local
        os.environ["POPDIST_NUM_TOTAL_REPLICAS"] = str(total)
        os.environ["POPDIST_REPLICA_INDEX_OFFSET"] = str(offset)
    return train(case)


if __name__ == "__main__":
    popdist.init()
    _INDEX = popdist.getInstanceIndex()
    results = {argument: train_with_replicas(argument) for argument in sys.argv[2:]}
    torch.save(results, Path(sys.argv[1]) / f"result_{popdist.getInstanceIndex()}.pt")
