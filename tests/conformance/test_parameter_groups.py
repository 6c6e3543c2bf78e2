"""Groups of parameters with hyper-parameters of their own (api §13, semantics §6.5)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from support import update_reference as reference
from support.regression import Regression, assert_same_parameters, batches, train_plain
from support.small_models import Function, options

import poptorch_emu as poptorch
from poptorch_emu.optim.optimizer_warnings import warn_once

pytestmark = pytest.mark.feature("Parameter groups", fidelity="exact")

# Class, arguments of all groups, and different arguments for each of two groups.
_SAME_AS_TORCH: dict[str, tuple[str, dict[str, Any], list[dict[str, Any]]]] = {
    "sgd": (
        "SGD",
        {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.0},
        [{"lr": 0.2, "weight_decay": 0.1}, {"momentum": 0.5}],
    ),
    "sgd nesterov": (
        "SGD",
        {"lr": 0.05, "momentum": 0.9, "nesterov": False},
        [{"nesterov": True}, {"nesterov": True, "momentum": 0.6, "weight_decay": 0.1}],
    ),
    "adam": (
        "Adam",
        {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.0},
        [
            {"betas": (0.5, 0.8), "weight_decay": 0.1},
            {"lr": 0.03, "eps": 1e-2, "betas": (0.7, 0.95)},
        ],
    ),
    "adamw": (
        "AdamW",
        {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.01},
        [{"betas": (0.6, 0.9), "weight_decay": 0.3}, {"lr": 0.002, "eps": 1e-2}],
    ),
    "rmsprop": (
        "RMSprop",
        {"lr": 0.01, "alpha": 0.99, "eps": 1e-6, "weight_decay": 0.0, "momentum": 0.9},
        [{"alpha": 0.5, "weight_decay": 0.1}, {"eps": 1e-2, "momentum": 0.3, "lr": 0.004}],
    ),
    "rmsprop centered": (
        "RMSprop",
        {"lr": 0.01, "alpha": 0.9, "eps": 1e-2, "centered": True, "momentum": 0.0},
        [{"alpha": 0.6, "momentum": 0.5}, {"eps": 1e-1, "momentum": 0.8}],
    ),
}


@pytest.mark.parametrize("module", [poptorch.optim, torch.optim], ids=["poptorch", "torch"])
@pytest.mark.parametrize("name", _SAME_AS_TORCH)
def test_groups_when_their_values_differ_then_each_follows_its_own(name: str, module) -> None:
    kind, shared, own = _SAME_AS_TORCH[name]

    def make(module, model: Regression, **more: Any) -> torch.optim.Optimizer:
        groups = [
            {"params": [model.first.weight], **own[0]},
            {"params": [model.first.bias, model.second.weight], **own[1]},
            {"params": [model.second.bias], "lr": 0.0, "weight_decay": 0.0},
        ]
        return getattr(module, kind)(groups, **shared, **more)

    model, data = Regression(), batches(20)
    plain = copy.deepcopy(model)
    bias = model.second.bias.detach().clone()
    training = poptorch.trainingModel(model, options(), make(module, model))
    for batch in data:
        training(*batch)
    training.destroy()
    train_plain(plain, make(torch.optim, plain, foreach=False), data)
    assert_same_parameters(model, plain)
    assert torch.equal(model.second.bias, bias)


def test_groups_of_lamb_when_their_values_differ_then_each_follows_the_formula() -> None:
    shared = {"lr": 0.02, "betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.0}
    shared["max_weight_norm"] = 65500.0
    own = [
        {"betas": (0.5, 0.8), "weight_decay": 0.1},
        {"lr": 0.05, "eps": 1e-2, "max_weight_norm": 0.3},
        {},
    ]
    start = torch.randn(3, 2)
    gradients = torch.randn(10, 3, 2)
    model = Function(
        lambda x, *w: poptorch.identity_loss((torch.stack(w) * x[0]).sum(), "sum"), *start.clone()
    )
    groups = [{"params": [w], **mine} for w, mine in zip(model.weights, own, strict=True)]
    training = poptorch.trainingModel(model, options(), poptorch.optim.LAMB(groups, **shared))
    for gradient in gradients:
        training(gradient[None])
    training.destroy()
    for index, mine in enumerate(own):
        told = {**shared, **mine, "is_corrected": True}
        told["beta1"], told["beta2"] = told.pop("betas")
        expected = reference.lamb(start[index].tolist(), gradients[:, index].tolist(), **told)
        torch.testing.assert_close(
            model.weights[index].detach(), torch.tensor(expected), rtol=2e-5, atol=2e-6
        )


def test_parameter_when_in_no_group_then_has_the_default_values() -> None:
    model, data = Regression(), batches(3)
    plain = copy.deepcopy(model)
    optimizer = poptorch.optim.SGD([{"params": model.first.parameters(), "lr": 0.3}], lr=0.05)
    training = poptorch.trainingModel(model, options(), optimizer)
    for batch in data:
        training(*batch)
    training.destroy()
    reference = torch.optim.SGD(
        [{"params": plain.first.parameters(), "lr": 0.3}, {"params": plain.second.parameters()}],
        lr=0.05,
    )
    train_plain(plain, reference, data)
    assert_same_parameters(model, plain)


@pytest.mark.parametrize(
    ("what", "is_reported"), [("trained", True), ("unused", False), ("frozen", False)]
)
def test_parameter_when_in_no_group_then_a_warning_if_the_device_trains_it(
    what: str, is_reported: bool, caplog: pytest.LogCaptureFixture
) -> None:
    warn_once.cache_clear()
    model = Function(
        lambda x, a, b: poptorch.identity_loss(
            x * a * (b.detach() if what == "unused" else b), "sum"
        ),
        torch.ones(2),
        torch.ones(2),
    )
    if what == "frozen":
        model.weights[1].requires_grad_(False)
    optimizer = poptorch.optim.SGD(model.weights[:1], lr=0.1)
    poptorch.trainingModel(model, options(), optimizer)(torch.ones(1, 2))
    assert ("in no group of the optimizer, the first is 'weights.1'" in caplog.text) == is_reported
