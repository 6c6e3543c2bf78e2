"""Small layers of inference by the engine's kernel: PyTorch's numbers, and the newest weights."""

from __future__ import annotations

import pytest
import torch
from test_packed_linear import (
    BATCH,
    BODIES,
    LAYER,
    NUM_LAYERS,
    OUR_LAYER,
    Staged,
    made,
    text_of,
    wrapped,
)
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import _C
from poptorch_emu.engine import onednn
from poptorch_emu.engine.rewrites import packed_linear

pytestmark = pytest.mark.skipif(_C.vector_width() == 0, reason="our kernel is for wide vectors")
with_onednn = pytest.mark.skipif(not onednn.IS_AVAILABLE, reason="this PyTorch has no oneDNN")


@pytest.mark.parametrize("name", BODIES)
def test_small_layers_then_have_the_numbers_of_pytorch(name):
    model, x = made(name), torch.randn(BATCH, 6)
    expected = model(x)
    inference = wrapped(made(name))
    for _ in range(2):
        torch.testing.assert_close(inference(x), expected)
    assert text_of(inference).count(OUR_LAYER) == NUM_LAYERS[name]


class SharedSizes(nn.Module):
    """Layers with one weight and inputs of several sizes, and one of a constant weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.constant = torch.randn(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        pairs = self.layer(y.view(-1, 2, 6).sum(1)).repeat_interleave(2, 0)
        return self.layer(y) + pairs + x @ self.constant.t()


def test_small_layers_with_one_weight_then_have_the_numbers_of_pytorch():
    torch.manual_seed(0)
    model, x = SharedSizes(), torch.randn(BATCH, 6)
    inference = poptorch.inferenceModel(model)
    torch.testing.assert_close(inference(x), model(x))
    # A packed weight is for one number of rows.
    assert text_of(inference).count(OUR_LAYER) == 2


class TwoKernels(nn.Module):
    """One weight, read for a small product and for one that oneDNN makes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(256, 256)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.layer(x), self.layer(y)


@with_onednn
@pytest.mark.usefixtures("without_panels")
def test_weight_of_a_small_and_a_large_layer_then_serves_both(monkeypatch):
    monkeypatch.setattr(packed_linear, "is_onednn_faster", lambda: True)
    torch.manual_seed(0)
    model, x, y = TwoKernels(), torch.randn(16, 256), torch.randn(256, 256)
    inference = poptorch.inferenceModel(model)
    for _ in range(2):
        torch.testing.assert_close(inference(x, y), model(x, y))
    assert OUR_LAYER in text_of(inference) and LAYER in text_of(inference)


def test_small_layers_when_the_user_changes_weights_then_are_packed_again():
    torch.manual_seed(0)
    model, x = Staged(()), torch.randn(BATCH, 6)
    inference = poptorch.inferenceModel(model)
    torch.testing.assert_close(inference(x), model(x))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    inference.copyWeightsToDevice()
    torch.testing.assert_close(inference(x), model(x))
    assert text_of(inference).count(OUR_LAYER) == 3
