"""Runs a function as the `forward` of a model, for tests of operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import poptorch_emu as poptorch


class FunctionModel(torch.nn.Module):
    """A model whose forward is `function(self, *inputs)`; it has one parameter, `weight`."""

    def __init__(self, function: Callable[..., Any], weight: torch.Tensor | None = None) -> None:
        super().__init__()
        self.function = function
        initial = torch.tensor([0.5, -1.0, 2.0]) if weight is None else weight
        self.weight = torch.nn.Parameter(initial.clone())

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


def quiet_options(**settings: int) -> poptorch.Options:
    options = poptorch.Options()
    options.showCompilationProgressBar(False)
    options.randomSeed(7)
    for name, value in settings.items():
        getattr(options, name)(value)
    return options


def infer(function: Callable[..., Any], *inputs: torch.Tensor, **settings: int) -> Any:
    """Returns the result of `function(model, *inputs)` on virtual IPUs."""
    options = quiet_options(**settings)
    return poptorch.inferenceModel(FunctionModel(function), options)(*inputs)


def train_weight(
    function: Callable[..., torch.Tensor], *inputs: torch.Tensor, weight: torch.Tensor | None = None
) -> torch.Tensor:
    """Returns the gradient of the loss `function(model, *inputs)` for the model's weight."""
    model = FunctionModel(function, weight)
    before = model.weight.detach().clone()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=1.0)
    training = poptorch.trainingModel(model, quiet_options(), optimizer)
    training(*inputs)
    training.destroy()
    return before - model.weight.detach()
