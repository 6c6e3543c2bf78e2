"""Complex numbers, forward and backward, as in plain PyTorch."""

from __future__ import annotations

import copy

import pytest
import torch
from support.small_models import options
from torch import nn

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("Complex numbers", fidelity="exact")


class Model(nn.Module):
    """Applies `function` to the module and a linear layer's result."""

    def __init__(self, function, **buffers) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.function = function
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, x: torch.Tensor):
        y = self.function(self, self.linear(x))
        y = torch.view_as_real(y) if y.is_complex() else y
        return y, poptorch.identity_loss(y.square().mean(), "none")


def turn(self, y):
    pairs = torch.view_as_complex(y.reshape(4, 4, 2))
    return torch.view_as_real(pairs * self.turns.clone()).flatten(1)


def turn_further(self, y):
    result = turn(self, y) * self.turns.clone().real.mean()
    self.turns.mul_(1j)
    return result


FUNCTIONS = {
    "angle": lambda self, y: torch.fft.rfft(y).angle(),
    "zeros": lambda self, y: torch.zeros(4, 8, dtype=torch.cfloat) + y,
    "cast": lambda self, y: y.to(torch.complex64) * 1j,
    "polar": lambda self, y: torch.polar(y.abs(), y),
    "real input of a transform": lambda self, y: torch.fft.irfft(y) + torch.fft.hfft(y),
    "constant of the host": lambda self, y: y * torch.tensor([1j] * 8),
    "buffer": turn,
    "buffer that is written": turn_further,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore:Casting complex")
def test_complex_numbers_when_trained_then_weights_are_those_of_pytorch(name: str) -> None:
    turns = torch.polar(torch.ones(4), torch.arange(4.0))
    model = Model(FUNCTIONS[name], turns=turns)
    plain = copy.deepcopy(model)
    training = poptorch.trainingModel(model, options(), torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for x in torch.randn(2, 4, 8):
        _, loss = training(x)
        optimizer.zero_grad()
        expected = plain(x)[1]
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=1e-5)
    training.destroy()
    torch.testing.assert_close(model.state_dict(), plain.state_dict(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_input_then_results_are_those_of_pytorch_in_complex64(dtype: torch.dtype) -> None:
    class Calls(nn.Module):
        def forward(self, z):
            return z * 2j, z.abs(), z.conj()

    z = torch.randn(6, 4, dtype=dtype)
    found = poptorch.inferenceModel(Calls(), options(iterations=2))(z)
    for value, expected in zip(found, Calls()(z.to(torch.complex64)), strict=True):
        torch.testing.assert_close(value, expected)


def test_complex_parameter_then_is_refused_by_name_and_its_pair_trains_the_same() -> None:
    class Scaled(nn.Module):
        def __init__(self, *, is_pair: bool) -> None:
            super().__init__()
            value = torch.polar(torch.ones(4), torch.arange(4.0))
            self.scale = nn.Parameter(torch.view_as_real(value).clone() if is_pair else value)
            self.is_pair = is_pair

        def forward(self, x):
            scale = torch.view_as_complex(self.scale) if self.is_pair else self.scale
            return poptorch.identity_loss((x * scale).sum().abs(), "none")

    x = torch.randn(2, 4)
    plain, model = Scaled(is_pair=False), Scaled(is_pair=True)
    with pytest.raises(poptorch.Error, match="that of parameter scale.*view_as_complex"):
        poptorch.inferenceModel(plain, options())(x)
    training = poptorch.trainingModel(model, options(), torch.optim.Adam(model.parameters(), 0.1))
    optimizer = torch.optim.Adam(plain.parameters(), 0.1)
    for _ in range(3):
        training(x)
        optimizer.zero_grad()
        plain(x).backward()
        optimizer.step()
    training.destroy()
    torch.testing.assert_close(torch.view_as_complex(model.scale.detach()), plain.scale.detach())
