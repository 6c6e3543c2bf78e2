"""Models that hold one function or one weight, and options for tests of numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import poptorch_emu as poptorch


class Function(nn.Module):
    """A model that computes `function` of its inputs and has the given parameters by position."""

    def __init__(self, function: Callable, *weights: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(weights)

    def forward(self, *inputs: torch.Tensor):
        return self.function(*inputs, *self.weights)


def options(*, accumulation: int = 1, iterations: int = 1, seed: int = 42) -> poptorch.Options:
    """Returns quiet options with a seed, which return the results of all micro-batches."""
    result = poptorch.Options()
    result.showCompilationProgressBar(False)
    result.randomSeed(seed)
    result.deviceIterations(iterations)
    result.Training.gradientAccumulation(accumulation)
    result.outputMode(poptorch.OutputMode.All)
    return result


def run(function: Callable, *inputs: torch.Tensor, opts: poptorch.Options | None = None):
    """Returns the result of one call of an inference model of `function`."""
    return poptorch.inferenceModel(Function(function), opts or options())(*inputs)


def trained(
    function: Callable,
    weights: list[torch.Tensor],
    batches: list[tuple[torch.Tensor, ...]],
    *,
    optimizer: Callable | None = None,
    opts: poptorch.Options | None = None,
) -> list[torch.Tensor]:
    """Returns the weights after one call of a training model for each batch."""
    model = Function(function, *(weight.clone() for weight in weights))
    make = optimizer or (lambda parameters: poptorch.optim.SGD(parameters, lr=0.1))
    training = poptorch.trainingModel(model, opts or options(), make(model.parameters()))
    for batch in batches:
        training(*batch)
    training.destroy()
    return [weight.detach().clone() for weight in model.weights]
