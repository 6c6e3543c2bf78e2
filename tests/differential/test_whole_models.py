"""Typical whole models: three training steps and inference equal plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from support.helpers import Setting, assert_same_training
from support.language_models import T5, VOCABULARY, Bert, Gpt2
from support.vision_models import (
    Classifier,
    VisionTransformer,
    basic_block,
    bottleneck,
    efficient_net,
    mobile_net,
    resnet,
)
from torch import nn

import poptorch_emu as poptorch


def images(rows: int, side: int = 16):
    return torch.randn(rows, 3, side, side), torch.randint(5, (rows,))


def words(rows: int) -> torch.Tensor:
    return torch.randint(1, VOCABULARY, (rows, 8))


def sentences(rows: int):
    ids = words(rows)
    labels = torch.where(torch.rand(ids.shape) < 0.4, ids, -100)
    ids[:, 6:] = 0
    labels[:, 0] = ids[:, 0]
    return ids, torch.randint(2, ids.shape), labels


MODELS = {
    "resnet18": (
        lambda: Classifier(resnet(basic_block, (1, 2, 1, 1), (4, 8, 8, 12), 5)),
        lambda rows: images(rows, 32),
    ),
    "resnet50": (
        lambda: Classifier(resnet(bottleneck, (1, 2, 1, 1), (8, 8, 12, 16), 5)),
        lambda rows: images(rows, 32),
    ),
    "mobilenet": (lambda: Classifier(mobile_net()), images),
    "efficientnet": (lambda: Classifier(efficient_net()), images),
    "vit": (lambda: Classifier(VisionTransformer()), images),
    "bert": (Bert, sentences),
    "gpt2": (Gpt2, lambda rows: (words(rows),)),
    "t5": (T5, lambda rows: (words(rows), words(rows))),
}


@pytest.mark.feature("Whole models", fidelity="exact")
@pytest.mark.parametrize("name", MODELS)
def test_training_of_a_whole_model_equals_plain_pytorch(name):
    make, batch = MODELS[name]
    torch.manual_seed(3)

    def sgd(parameters, module=torch.optim):
        return module.SGD(parameters, lr=0.01, momentum=0.9)

    assert_same_training(
        make(), batch, Setting(), num_updates=3, rows=4, make_optimizer=sgd, rtol=2e-4, atol=2e-5
    )


@pytest.mark.parametrize("name", MODELS)
def test_inference_of_a_whole_model_equals_plain_pytorch(name):
    make, batch = MODELS[name]
    torch.manual_seed(3)
    model: nn.Module = make().eval()
    arguments = batch(2)
    options = Setting().options()
    actual = poptorch.inferenceModel(model, options)(*arguments)
    with torch.no_grad():
        expected = model(*arguments)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
