"""Attention for inference by the engine's own products: plain PyTorch's numbers."""

from __future__ import annotations

import pytest
import torch
from support.processors import needs_vectors, on_any_processor
from torch import nn
from torch.nn import functional as F

import poptorch_emu as poptorch
from poptorch_emu.engine import product_kernels
from poptorch_emu.engine.product_kernels import Role

pytestmark = needs_vectors
OURS = "poptorch_emu::attention_by_heads("
THEIRS = "::_scaled_dot_product_flash_attention_for_cpu("
BATCH, LENGTH, WIDTH = 4, 10, 64


@pytest.fixture(autouse=True)
def _any_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_kernels, "TABLE", on_any_processor(Role.ATTENTION))


class Attentive(nn.Module):
    """Attention of a number of heads, whose operations may be on several IPUs."""

    def __init__(self, num_heads: int, *, is_staged: bool = False, **options: object) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.project, self.last = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3)
        self.num_heads, self.is_staged, self.options = num_heads, is_staged, options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        with poptorch.Block("first", ipu_id=0):
            parts = self.project(x).view(batch, length, 3, self.num_heads, -1).unbind(2)
            q, k, v = (part.transpose(1, 2) for part in parts)
        with poptorch.Block("second", ipu_id=int(self.is_staged)):
            y = F.scaled_dot_product_attention(q, k, v, **self.options)
        with poptorch.Block("third", ipu_id=2 * self.is_staged):
            return self.last(y.transpose(1, 2).reshape(batch, length, WIDTH))


class OfOthers(nn.Module):
    """Keys and values of another length than the queries."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.view(BATCH, LENGTH, 4, 16).transpose(1, 2)
        others = torch.cat((heads, heads.flip(2), heads[:, :, :3]), 2)
        return F.scaled_dot_product_attention(heads, others, others + 1)


class SharedHeads(nn.Module):
    """Four heads of queries for two of keys and values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.view(BATCH, LENGTH, 4, 16).transpose(1, 2)
        pairs = heads[:, :2]
        return F.scaled_dot_product_attention(heads, pairs, pairs + 1, enable_gqa=True)


def encoder() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 96, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


MASK = torch.arange(LENGTH * LENGTH).view(LENGTH, LENGTH) % 5 != 1

# For each case: the body, and the number of attentions that our operator computes.
BODIES = {
    "heads": (lambda: Attentive(4), 1),
    "one head": (lambda: Attentive(1), 1),
    "scaled": (lambda: Attentive(2, scale=0.4), 1),
    "other lengths": (OfOthers, 1),
    "encoder": (encoder, 2),
    "shared heads": (SharedHeads, 0),
    "causal": (lambda: Attentive(4, is_causal=True), 0),
    "masked": (lambda: Attentive(4, attn_mask=MASK), 0),
    "narrow heads": (lambda: Attentive(8), 0),
}


def made(name: str) -> nn.Module:
    return BODIES[name][0]().eval()


def data() -> torch.Tensor:
    return torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))


def text_of(executor: poptorch.PoplarExecutor) -> str:
    return executor._executable.program.text()


@pytest.mark.parametrize("name", BODIES)
def test_attention_then_equals_plain_pytorch(name):
    inference = poptorch.inferenceModel(made(name))
    for _ in range(2):
        torch.testing.assert_close(inference(data()), made(name)(data()))
    assert text_of(inference).count(OURS) == BODIES[name][1]
    assert (THEIRS in text_of(inference)) is (BODIES[name][1] == 0)


def test_where_the_library_is_as_fast_then_pytorch_s_attention_stays(monkeypatch):
    monkeypatch.setattr(product_kernels, "TABLE", ())
    inference = poptorch.inferenceModel(made("heads"))
    torch.testing.assert_close(inference(data()), made("heads")(data()))
    assert OURS not in text_of(inference)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("replicas", [1, 2])
def test_bits_do_not_depend_on_stages_replicas_or_workers(replicas, workers, monkeypatch):
    monkeypatch.setenv("POPTORCH_EMU_WORKERS", str(workers))
    x = torch.randn(8 * BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))
    results = []
    for is_staged, factor in ((False, 1), (True, replicas)):
        options = poptorch.Options()
        options.deviceIterations(8 // factor)
        options.replicationFactor(factor)
        options.autoRoundNumIPUs(True)
        inference = poptorch.inferenceModel(Attentive(4, is_staged=is_staged).eval(), options)
        results.append(inference(x))
        assert OURS in text_of(inference)
    assert torch.equal(*results)
    torch.testing.assert_close(results[0], Attentive(4).eval()(x))


def test_training_then_has_pytorch_s_attention():
    class Trained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = Attentive(4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.body(x)
            with poptorch.Block("loss", ipu_id=0):
                return y, poptorch.identity_loss(y * y, "mean")

    model = Trained()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, optimizer=optimizer)
    training.compile(data())
    assert OURS not in text_of(training) and THEIRS in text_of(training)
