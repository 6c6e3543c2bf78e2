"""Attention reads queries, keys and values without copies, with the numbers of plain PyTorch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poptorch_emu as poptorch

BATCH, LENGTH, WIDTH, ACCUMULATION = 3, 10, 16, 4
ATTENTION, COPY = "::_scaled_dot_product_flash_attention_for_cpu(", "poptorch_emu::contiguous("


class Attentive(nn.Module):
    """PyTorch's attention layer, with a loss."""

    def __init__(self, num_heads: int, *, batch_first: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(WIDTH, num_heads, batch_first=batch_first)
        self.last = nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, _ = self.attention(x, x, x, need_weights=False)
        x = self.last(x)
        return x, poptorch.identity_loss(x.square().mean(), "none")


class OfProjection(nn.Module):
    """Attention to parts of a copy; another operation may also read one of the parts."""

    def __init__(self, *, is_read: bool, dim: int = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.is_read, self.dim = is_read, dim

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        batch, length, _ = x.shape
        parts = self.project(x).view(batch, length, 3, 4, WIDTH // 4).movedim(2, self.dim)
        parts = parts.contiguous()
        q, k, v = (parts.select(self.dim, index) for index in range(3))
        x = F.scaled_dot_product_attention(*(each.transpose(1, 2) for each in (q, k, v)))
        if self.is_read:
            x = x + k.transpose(1, 2).exp()
        return x, poptorch.identity_loss(x.square().mean(), "none")


def run(model: nn.Module) -> tuple[list[torch.Tensor], str]:
    """Returns a result, the weights after some updates, and the listing of the program."""
    options = poptorch.Options()
    options.Training.gradientAccumulation(ACCUMULATION)
    options.outputMode(poptorch.OutputMode.All)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    training = poptorch.trainingModel(model, options, optimizer)
    for _ in range(2):
        result, _ = training(data())
    text = str(training._executable.program)
    training.destroy()
    return [result, *(weight.detach() for weight in model.parameters())], text


def plain(model: nn.Module) -> list[torch.Tensor]:
    """Returns the result and the weights of plain PyTorch."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        results = []
        for x in data().split(BATCH):
            result, loss = model(x)
            (loss / ACCUMULATION).backward()
            results.append(result.detach())
        optimizer.step()
    return [torch.cat(results), *(weight.detach() for weight in model.parameters())]


def data() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(ACCUMULATION * BATCH, LENGTH, WIDTH, generator=generator)


def assert_close(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("num_heads", [1, 4, WIDTH])
def test_attention_of_pytorch_then_reads_its_projection(num_heads: int, batch_first: bool) -> None:
    model = Attentive(num_heads, batch_first=batch_first)
    expected = plain(model)
    actual, text = run(model)
    forward = text[: text.index(ATTENTION)]
    # Heads with one number have no dense rows, so the copy stays.
    assert text.count(ATTENTION) == 1 and (COPY in forward) == (num_heads == WIDTH)
    assert_close(actual, expected)


def test_inference_then_reads_its_projection_too() -> None:
    model = Attentive(4).eval()
    expected = model(data())[0]
    inference = poptorch.inferenceModel(model)
    actual, _ = inference(data())
    text = str(inference._executable.program)
    assert COPY not in text[: text.index(ATTENTION)]
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_copy_when_somebody_else_reads_it_then_stays(is_read: bool, dim: int) -> None:
    model = OfProjection(is_read=is_read, dim=dim)
    expected = plain(model)
    actual, text = run(model)
    is_copied = COPY in text[: text.index(ATTENTION)]
    assert is_copied == is_read
    assert_close(actual, expected)


class Cut(nn.Module):
    """A dense copy of some columns, which is the result or the input of a layer norm."""

    def __init__(self, is_normed: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(3) if is_normed else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm((2 * x)[:, :3].contiguous())


@pytest.mark.parametrize("is_normed", [False, True])
def test_copy_when_no_attention_reads_it_then_stays(is_normed: bool) -> None:
    x = torch.randn(4, 5)
    inference = poptorch.inferenceModel(Cut(is_normed))
    torch.testing.assert_close(inference(x), Cut(is_normed)(x))
    assert COPY in str(inference._executable.program)
