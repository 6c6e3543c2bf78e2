"""Functions as wrapped models, for tests of checks."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

import poptorch_emu as poptorch


def options() -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False)


def run(forward, *args, is_training: bool = False, opts=None, **kwargs):
    """Returns a new model with this `forward`, wrapped and called once."""
    executor = wrapped(forward, is_training, opts)
    executor(*args, **kwargs)
    return executor


def wrapped(forward, is_training: bool = False, opts=None) -> poptorch.PoplarExecutor:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))
            self.register_buffer("state", torch.zeros(1))
            self.norm = nn.BatchNorm1d(2)
            self.host = torch.ones(2)

    Model.forward = forward
    wrap = poptorch.trainingModel if is_training else poptorch.inferenceModel
    return wrap(Model(), opts or options())


X = torch.ones(2)


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


def asserted_chain(self, x):
    """Contains a plain assert, because pytest rewrites the asserts of test files."""
    assert x.dim() == 1 and not (x < 0).any() and torch.isfinite(x).all()
    return x + 1


def asserted_number(self, x):
    """Contains a plain assert, for the same reason."""
    assert (x < 0).sum().item() < x.shape[0]
    return x + 1
