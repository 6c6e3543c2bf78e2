"""Trains in two processes whose models differ in the way that the first argument names.

Each process saves the message of its error as `result_<index>.pt`; "" if it raised none.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from support.process_training import Model

import poptorch_emu as poptorch
from poptorch_emu.companions import popdist


class Grouped(torch.nn.Module):
    """A layer and its loss; each of two groups of replicas has its own weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2, 3, 5))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(torch.nn.functional.linear(x, self.weight), target)
        return poptorch.identity_loss(loss, "mean")


def train(way: str, is_misfit: bool) -> None:
    """Trains one step; if this process is the misfit, in the given way."""
    torch.manual_seed(0)
    model = Grouped() if way == "grouping" else Model(1, 0.0, False)
    options = poptorch.Options()
    number, count = popdist.getInstanceIndex(), popdist.getNumInstances()
    options.Distributed.configureProcessId(number, 3 if way == "group" and is_misfit else count)
    replicas = 2 if way == "grouping" or (way == "replicas" and is_misfit) else 1
    windows = 2 if way == "windows" and is_misfit else 1
    options.replicationFactor(replicas)
    options.deviceIterations(windows)
    rows = (2 if way == "shapes" and is_misfit else 1) * replicas * windows
    trainer = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.1))
    if way == "grouping":
        trainer.weight.replicaGrouping(
            poptorch.CommGroupType.NoGrouping, 0, poptorch.VariableRetrievalMode.OnePerGroup
        )
    trainer(torch.ones(rows, 5), torch.ones(rows, 3))


def message_of(way: str, is_misfit: bool) -> str:
    """Returns the message of the error; "" if none was raised."""
    try:
        popdist.init()
        if way == "fork":
            return message_in_fork() if is_misfit else ""
        train(way, is_misfit)
    except poptorch.Error as error:
        return error.message
    return ""


def message_in_fork() -> str:
    """Returns the error of a process that is forked from one that has joined others."""
    end, beginning = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            popdist.synchronize()
        except poptorch.Error as error:
            os.write(beginning, error.message.encode())
        os._exit(0)
    os.close(beginning)
    os.waitpid(child, 0)
    with os.fdopen(end) as pipe:
        return pipe.read()


if __name__ == "__main__":
    index = popdist.getInstanceIndex()
    message = message_of(sys.argv[1], index == popdist.getNumInstances() - 1)
    torch.save(message, Path(sys.argv[2]) / f"result_{index}.pt")
