"""Users' changes of weights between calls (spec, semantics 8.1, 8.2; api 16.5)."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from support.helpers import Setting, assert_same_training, plain_step
from torch import nn

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("Weights between calls", fidelity="exact")


class Classifier(nn.Module):
    """A body and a head on two IPUs."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh())
        self.head = nn.Linear(8, classes)

    def forward(self, x: torch.Tensor, labels: torch.Tensor):
        with poptorch.Block("body", ipu_id=0):
            x = self.body(x)
        with poptorch.Block("head", ipu_id=1):
            x = self.head(x)
            return x, F.cross_entropy(x, labels)


class Tied(nn.Module):
    """Word embeddings and output scores with the same matrix, in two stages."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.inner = nn.Linear(6, 6)
        self.out = nn.Linear(6, 11, bias=False)
        self.out.weight = self.words.weight

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor):
        with poptorch.Block("in", ipu_id=0):
            x = torch.tanh(self.inner(self.words(tokens)))
        with poptorch.Block("out", ipu_id=1):
            x = self.out(x)
            return x, F.cross_entropy(x, labels)


SETTING = Setting("sharded", accumulation=2)


def _batch(rows: int, classes: int = 4):
    return torch.randn(rows, 6), torch.randint(classes, (rows,))


def _sgd(module, parameters):
    return module.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


def _assert_same(model: nn.Module, plain: nn.Module) -> None:
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def _training(model: nn.Module, parameters=None):
    return poptorch.trainingModel(
        model,
        SETTING.options(),
        _sgd(poptorch.optim, parameters or model.parameters()),
    )


def test_fine_tuning_when_the_head_changes_then_equals_the_plain_loop() -> None:
    model = Classifier()
    plain = copy.deepcopy(model)
    training = _training(model)
    for step, classes in enumerate((4, 9)):
        if step == 1:
            training.destroy()
            model.head = nn.Linear(8, classes)
            plain.head = copy.deepcopy(model.head)
            for owner in (model, plain):
                owner.body.requires_grad_(False)
            body = copy.deepcopy(model.body.state_dict())
            training = _training(model, list(model.head.parameters()))
        optimizer = _sgd(torch.optim, [p for p in plain.parameters() if p.requires_grad])
        for _ in range(3):
            batch = _batch(4, classes)
            _, losses = training(*batch)
            torch.testing.assert_close(losses, plain_step(plain, optimizer, batch, SETTING))
    training.destroy()
    _assert_same(model, plain)
    for name, value in model.body.state_dict().items():
        assert torch.equal(value, body[name])


def test_frozen_parameters_when_trained_then_bits_stay_and_the_rest_equals_the_plain_loop() -> None:
    model = Classifier()
    model.body.requires_grad_(False)
    before = copy.deepcopy(model.body.state_dict())
    plain = copy.deepcopy(model)
    optimizer = _sgd(torch.optim, plain.parameters())
    training = _training(model)
    for _ in range(3):
        batch = _batch(4)
        training(*batch)
        plain_step(plain, optimizer, batch, SETTING)
    training.destroy()
    _assert_same(model, plain)
    for name, value in before.items():
        assert torch.equal(model.body.state_dict()[name], value)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("strategy", ["pipelined", "sharded"])
def test_tied_weights_when_two_stages_use_them_then_equals_the_plain_loop(
    strategy: str, replicas: int
) -> None:
    assert_same_training(
        Tied(),
        lambda rows: (torch.randint(11, (rows,)), torch.randint(11, (rows,))),
        Setting(strategy, accumulation=3, replicas=replicas),
        num_updates=6,
    )


def test_tied_weights_when_trained_then_stay_one_parameter() -> None:
    model = Tied()
    training = _training(model)
    training(torch.randint(11, (4,)), torch.randint(11, (4,)))
    training.destroy()
    assert model.out.weight is model.words.weight
    assert torch.equal(model.state_dict()["out.weight"], model.state_dict()["words.weight"])


def test_parameters_when_changed_and_uploaded_then_training_goes_on_from_them() -> None:
    model = Classifier()
    plain = copy.deepcopy(model)
    optimizer = _sgd(torch.optim, plain.parameters())
    training = _training(model)
    for step in range(4):
        if step == 2:
            for owner in (model, plain):
                with torch.no_grad():
                    owner.head.weight.mul_(0.5)
                    owner.body[0].bias.fill_(0.25)
            training.copyWeightsToDevice()
        batch = _batch(4)
        _, losses = training(*batch)
        torch.testing.assert_close(losses, plain_step(plain, optimizer, batch, SETTING))
    training.destroy()
    _assert_same(model, plain)


def test_parameters_when_changed_in_inference_then_count_after_the_upload_only() -> None:
    model = nn.Linear(3, 3)
    x = torch.randn(2, 3)
    inference = poptorch.inferenceModel(model)
    before = inference(x)
    with torch.no_grad():
        model.weight.mul_(2.0)
    assert torch.equal(inference(x), before)
    inference.copyWeightsToDevice()
    torch.testing.assert_close(inference(x), model(x))


def test_device_when_handed_from_training_to_validation_and_back_then_nothing_is_lost() -> None:
    model = Classifier()
    plain = copy.deepcopy(model)
    optimizer = _sgd(torch.optim, plain.parameters())
    training = _training(model)
    validation = poptorch.inferenceModel(model, Setting("sharded").options())
    for step in range(3):
        batch = _batch(4)
        training(*batch)
        plain_step(plain, optimizer, batch, SETTING)
        training.detachFromDevice()
        assert not training.isAttachedToDevice()
        if step > 0:
            validation.attachToDevice()
        rows = _batch(4)
        torch.testing.assert_close(validation(*rows)[0], plain(*rows)[0], rtol=1e-4, atol=1e-5)
        validation.detachFromDevice()
        training.attachToDevice()
    training.destroy()
    _assert_same(model, plain)
