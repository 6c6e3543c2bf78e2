"""`emulator.compare` of a model with itself: equal bits, with any random numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.models import FAMILIES
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.emulator import Verdict

pytestmark = pytest.mark.feature("emulator.compare", fidelity="exact")

F = nn.functional
WIDTH = 8


class Applied(nn.Module):
    """A chain of layers, and a loss."""

    def __init__(self, *parts: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(part for part in parts if isinstance(part, nn.Module))
        self.parts = parts
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, y: torch.Tensor):
        for part in self.parts:
            x = part(x)
        x = self.head(x)
        return x, F.mse_loss(x, y)


def first(part: nn.Module) -> nn.Module:
    """Returns a module that returns the first result of `part`."""

    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = part

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.part(x)[0]

    return First()


def attending(rate: float) -> nn.Module:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(WIDTH, 2, dropout=rate, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.attention(x, x, x, need_weights=False)[0]

    return Attending()


def decoded() -> nn.Module:
    class Decoded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerDecoderLayer(WIDTH, 2, 16, dropout=0.2, batch_first=True)
            self.decoder = nn.TransformerDecoder(layer, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.decoder(x, x.flip(1))

    return Decoded()


def encoder(rate: float) -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=rate, batch_first=True)


def dot_product(rate: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=rate)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "attention twice": lambda: Applied(dot_product(0.0), nn.Linear(WIDTH, WIDTH), dot_product(0.0)),
    "attention that drops": lambda: Applied(dot_product(0.3), nn.Dropout(0.2), dot_product(0.1)),
    "heads that drop": lambda: Applied(attending(0.2), attending(0.0)),
    "encoders": lambda: Applied(encoder(0.1), encoder(0.3)),
    "decoder": lambda: Applied(decoded()),
    "recurrent layers": lambda: Applied(
        first(nn.LSTM(WIDTH, WIDTH, 2, batch_first=True)),
        first(nn.GRU(WIDTH, WIDTH, batch_first=True)),
    ),
    "random slopes": lambda: Applied(nn.RReLU(), nn.Linear(WIDTH, WIDTH), nn.RReLU()),
    "several draws": lambda: Applied(
        nn.AlphaDropout(0.2), lambda x: x + torch.randn_like(x), lambda x: x * torch.rand_like(x),
        lambda x: x + torch.bernoulli(x.sigmoid().detach()), nn.Dropout1d(0.3),
    ),
}  # fmt: skip


def wrapped(model: nn.Module) -> poptorch.PoplarExecutor:
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(2)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01)
    return poptorch.trainingModel(model, options, optimizer)


def batch(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 4, 5, WIDTH, generator=generator).to(dtype).unbind()
    return x, y


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float", "half"])
@pytest.mark.parametrize("name", MODELS)
def test_model_against_itself_then_bits_are_equal(name: str, dtype: torch.dtype) -> None:
    training = wrapped(MODELS[name]().to(dtype))
    report = emulator.compare(training, *batch(dtype), against=training)
    assert report.verdict is Verdict.EQUAL, str(report)
    assert report.num_missing == 0


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("encoders", "decoder")])
def test_model_against_plain_pytorch_then_rounding_explains_all(name: str) -> None:
    training = wrapped(MODELS[name]())
    report = emulator.compare(training, *batch(torch.float32))
    assert report.verdict <= Verdict.REORDERED, str(report)
    wide = emulator.compare(training, *batch(torch.float32), against=torch.float64)
    assert wide.verdict <= Verdict.LESS_PRECISION, str(wide)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float", "half"])
@pytest.mark.parametrize("name", ["transformer", "lstm"])
def test_model_of_the_suite_against_a_copy_then_bits_are_equal(name, dtype, tmp_path) -> None:
    torch.manual_seed(0)
    x, labels = FAMILIES[name].batch(8)
    x = x.to(dtype) if x.is_floating_point() else x
    training = wrapped(FAMILIES[name].make(1).to(dtype))
    path = emulator.record(training, x, labels, path=tmp_path / "run")
    assert emulator.compare(training, x, labels, against=path).verdict is Verdict.EQUAL
