"""`max_grad_norm` against `torch.nn.utils.clip_grad_norm_` in a plain loop (spec 6.4)."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from support.helpers import (
    Setting,
    assert_same_bits_for_any_workers,
    assert_same_training,
    plain_step,
)
from support.models import FAMILIES

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("max_grad_norm", fidelity="exact")

# The first updates of the MLP have norms of about 0.3 to 0.6, so this limit clips some of them.
LIMIT = 0.4


# One optimiser with all layouts, and each other optimiser with one layout.
CASES = [
    *itertools.product(["SGD"], [1, 2, 4], [1, 4], [1, 2]),
    *itertools.product(["Adam", "AdamW"], [2], [4], [2]),
]


@pytest.mark.parametrize(("name", "stages", "accumulation", "replicas"), CASES)
def test_clipping_when_trained_then_equals_plain_pytorch(
    name: str, stages: int, accumulation: int, replicas: int
) -> None:
    def make(parameters, module):
        own = {"max_grad_norm": LIMIT} if module is poptorch.optim else {}
        return getattr(module, name)(parameters, lr=0.02, **own)

    assert_same_training(
        FAMILIES["mlp"].make(stages),
        FAMILIES["mlp"].batch,
        Setting("sharded", accumulation, replicas=replicas),
        num_updates=4,
        make_optimizer=make,
        max_grad_norm=LIMIT,
        rtol=1e-4,
        atol=1e-5,
    )


def test_clipping_when_pipelined_over_four_ipus_then_equals_plain_pytorch() -> None:
    assert_same_training(
        FAMILIES["mnist"].make(4),
        FAMILIES["mnist"].batch,
        Setting("pipelined", accumulation=7),
        num_updates=2,
        make_optimizer=lambda parameters, module: module.SGD(
            parameters,
            lr=0.1,
            momentum=0.9,
            **({"max_grad_norm": 0.5} if module is poptorch.optim else {}),
        ),
        max_grad_norm=0.5,
        rtol=1e-4,
        atol=1e-5,
    )


def _first_change(limit: float, loss_scaling: float) -> torch.Tensor:
    """Returns the norm of the change by one update of plain gradient descent with rate 1."""
    torch.manual_seed(7)
    model = FAMILIES["mlp"].make(2)
    before = copy.deepcopy(model.state_dict())
    setting = Setting("sharded", accumulation=2)
    training = poptorch.trainingModel(
        model,
        setting.options(),
        poptorch.optim.SGD(
            model.parameters(), lr=1.0, max_grad_norm=limit, loss_scaling=loss_scaling
        ),
    )
    training(*FAMILIES["mlp"].batch(4))
    training.destroy()
    changes = [(model.state_dict()[name] - value).flatten() for name, value in before.items()]
    return torch.cat(changes).norm()


def test_clipping_when_norm_is_above_the_limit_then_the_change_has_the_limit_as_norm() -> None:
    unlimited = _first_change(math.inf, 1.0)
    assert unlimited > 0.02
    torch.testing.assert_close(_first_change(0.02, 1.0), torch.tensor(0.02), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(_first_change(1e6, 1.0), unlimited)


def _weights(model: torch.nn.Module, optimizer: torch.optim.Optimizer, scales) -> torch.Tensor:
    """Returns the weights after one call for each loss scale, which changes between the calls."""
    training = poptorch.trainingModel(
        model, Setting("sharded", accumulation=2).options(), optimizer
    )
    torch.manual_seed(11)
    for scale in scales:
        optimizer.loss_scaling = scale
        training.setOptimizer(optimizer)
        training(*FAMILIES["mlp"].batch(8))
    training.destroy()
    return torch.nn.utils.parameters_to_vector(model.parameters())


SCALES = {"constant": (128.0,) * 4, "not a power of two": (20.0,) * 4, "variable": (1.0, 10.0, 7.0)}
ADAPTIVE = {
    "Adam": {"lr": 0.02},
    "AdamW": {"lr": 0.02, "weight_decay": 0.1},
    "LAMB": {"lr": 0.02},
    "RMSprop": {"lr": 0.02},
}


@pytest.mark.parametrize("scales", SCALES.values(), ids=SCALES)
@pytest.mark.parametrize("name", ADAPTIVE)
def test_clipping_when_loss_is_scaled_then_adaptive_rules_do_not_depend_on_the_scale(
    name: str, scales: tuple[float, ...]
) -> None:
    torch.manual_seed(7)
    model = FAMILIES["mlp"].make(2)
    found = []
    for scaled in (scales, [1.0] * len(scales)):
        trained = copy.deepcopy(model)
        # A group of weights and one of biases, which one norm limits together.
        groups = [
            {"params": [p for p in trained.parameters() if (p.dim() > 1) == is_matrix]}
            for is_matrix in (True, False)
        ]
        optimizer = getattr(poptorch.optim, name)(groups, loss_scaling=scaled[0], **ADAPTIVE[name])
        optimizer.max_grad_norm = 0.1  # The constructor of RMSprop has no such argument.
        if len(set(scaled)) > 1:
            optimizer.variable_attrs.markAsVariable("loss_scaling")
        found.append(_weights(trained, optimizer, scaled))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_clipping_when_loss_is_scaled_then_adam_equals_plain_pytorch(name: str) -> None:
    def make(parameters, module):
        own = {"max_grad_norm": LIMIT, "loss_scaling": 20.0} if module is poptorch.optim else {}
        return getattr(module, name)(parameters, **ADAPTIVE[name], **own)

    assert_same_training(
        FAMILIES["mlp"].make(2),
        FAMILIES["mlp"].batch,
        Setting("sharded", accumulation=2, replicas=2),
        num_updates=4,
        make_optimizer=make,
        max_grad_norm=LIMIT,
        rtol=1e-4,
        atol=1e-5,
    )


def test_clipping_when_sgd_scales_the_loss_then_the_limit_is_of_the_scaled_gradient() -> None:
    torch.testing.assert_close(
        _first_change(0.02, 16.0), torch.tensor(0.02 / 16), rtol=1e-3, atol=1e-7
    )


def test_clipping_when_workers_differ_then_bits_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(3)
    setting = Setting("pipelined", accumulation=8, replicas=2)
    assert_same_bits_for_any_workers(monkeypatch, setting, setting.options())


def test_plain_loop_when_clipped_then_differs_from_the_unclipped_one() -> None:
    """Shows that the limit of the comparisons above takes effect."""
    model = FAMILIES["mlp"].make(1)
    batch = FAMILIES["mlp"].batch(2)
    weights = []
    for limit in (math.inf, LIMIT):
        plain = copy.deepcopy(model)
        plain_step(plain, torch.optim.SGD(plain.parameters(), lr=0.5), batch, Setting(), limit)
        weights.append(plain.parts[0][0].weight)
    assert not torch.equal(*weights)
