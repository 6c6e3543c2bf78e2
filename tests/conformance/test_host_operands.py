"""Operands of the host beside tensors of the device: functions that compare devices themselves."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.small_models import options
from torch import nn

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("Tensors of the host in forward", fidelity="exact")
TABLE = torch.arange(20.0).reshape(5, 4) / 7
SIGNAL = torch.sin(torch.arange(512.0) / 5).reshape(2, 256)
INDEX = torch.tensor([0, 1, 3, 2])
HOST, HOST2 = TABLE.clone(), torch.empty(4, 4)


class Calls(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("window", torch.hann_window(64))

    def forward(self, *args):
        return self.function(self, *args)


def spectrum(self, x):
    return torch.stft(x, 64, 16, 64, torch.hann_window(64), return_complex=True).abs()


def round_trip(self, x):
    found = torch.stft(x, 64, 16, 64, self.window, return_complex=True)
    return torch.istft(found * found.abs(), 64, 16, 64, self.window, length=256)


FUNCTIONS = {
    "take_along_dim": (lambda _, i: torch.take_along_dim(TABLE, i[:, None], 0), INDEX),
    "cosine_similarity": (lambda _, x: F.cosine_similarity(x, TABLE[:2]), TABLE[1:3]),
    "cosine_similarity of the host": (lambda _, x: F.cosine_similarity(TABLE[:2], x), TABLE[1:3]),
    "embedding_bag": (lambda _, i: F.embedding_bag(i[None], TABLE), INDEX),
    "inner": (lambda _, x: torch.inner(TABLE, x), TABLE[1:3]),
    "convolution of the host": (lambda _, w: F.conv1d(TABLE[None], w), torch.ones(2, 5, 3)),
    "convolution without batch": (lambda _, w: F.conv1d(TABLE, w), torch.ones(2, 5, 3)),
    "table of rfft": (lambda _, x: torch.fft.rfft(x * TABLE[0]).abs(), TABLE[1:3]),
    "window made in forward": (spectrum, SIGNAL),
    "window in a buffer": (round_trip, SIGNAL),
    "frequencies": (lambda _, x: x * torch.fft.rfftfreq(6), TABLE[1:3]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operand_of_the_host_then_result_is_that_of_pytorch(name: str) -> None:
    function, x = FUNCTIONS[name]
    model = Calls(function)
    found = poptorch.inferenceModel(model, options())(x)
    torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda _, x: F.embedding(x, HOST, max_norm=0.1),
        lambda _, x: torch.take_along_dim(HOST, x[:, None], 0, out=HOST2),
    ],
    ids=["max_norm", "out"],
)
def test_tensor_of_the_host_that_would_be_written_then_is_refused(function) -> None:
    with pytest.raises(poptorch.Error, match="this tensor of the host"):
        poptorch.inferenceModel(Calls(function), options())(INDEX)


def test_window_with_a_gap_then_istft_is_refused_when_captured() -> None:
    model = Calls(round_trip)
    model.window.zero_()
    with pytest.raises(RuntimeError, match="windows that overlap must not add up to zero"):
        poptorch.inferenceModel(model, options())(SIGNAL)
