"""Joined micro-batches have the numbers of PyTorch, for operations by rows and all others."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.helpers import Setting, plain_step
from support.joining import join
from torch import nn

import poptorch_emu as poptorch

WIDTH, STEPS, ROWS = 8, 5, 3


class Lambda(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class Attention(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=batch_first)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.attention(x, x, x, need_weights=False)[0]


class Weighted(nn.Module):
    """A parameter for each row of a micro-batch, which broadcasts over none."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(ROWS, 1, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.layer = kind(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


class Pulled(nn.Module):
    """A weight with a hook that adds a number to its gradient in each micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weight = self.weight.view(WIDTH)
        weight.register_hook(lambda gradient: gradient + 0.5)
        y = x * weight
        return y, poptorch.identity_loss(y, "sum")


class Images(nn.Module):
    """Convolutions and poolings of (rows, steps, width) as images of one channel."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 3, padding=1), norm
        self.second = nn.Conv2d(4, 1, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.max_pool2d(F.relu(self.norm(self.first(x[:, None]))), (1, 2))
        return x + F.interpolate(self.second(y), size=(STEPS, WIDTH))[:, 0]


# Modules whose input and output have the shape (rows, steps, width).
PARTS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "wide layer norm": lambda: nn.LayerNorm((STEPS, WIDTH)),
    "group norm": lambda: Lambda(nn.Sequential(nn.GroupNorm(1, STEPS))),
    "instance norm": lambda: nn.InstanceNorm1d(STEPS, affine=True),
    "gelu": nn.GELU,
    "softmax": lambda: nn.Softmax(-1),
    "softmax over rows": lambda: nn.Softmax(0),
    "attention": lambda: Attention(batch_first=True),
    "attention over rows": lambda: Attention(batch_first=False),
    "encoder": lambda: nn.TransformerEncoderLayer(
        WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=True
    ),
    "lstm": lambda: Recurrent(nn.LSTM),
    "gru": lambda: Recurrent(nn.GRU),
    "images": lambda: Images(nn.Identity()),
    "images with group norm": lambda: Images(nn.GroupNorm(2, 4)),
    "norm of rows": lambda: nn.BatchNorm1d(STEPS, track_running_stats=False),
    "weight of each row": Weighted,
    "cumulated over steps": lambda: Lambda(lambda x: x.cumsum(1) / STEPS),
    "cumulated over rows": lambda: Lambda(lambda x: x.cumsum(0) / ROWS),
    "less the mean of rows": lambda: Lambda(lambda x: x - x.mean(0)),
    "less the mean of all": lambda: Lambda(lambda x: x - x.mean()),
    "by the largest": lambda: Lambda(lambda x: x / (1 + x.abs().amax((1, 2), keepdim=True))),
    "turned rows": lambda: Lambda(lambda x: x.flip(0)),
    "turned steps": lambda: Lambda(lambda x: x.flip(1)),
    "rolled rows": lambda: Lambda(lambda x: x.roll(1, 0)),
    "first rows": lambda: Lambda(lambda x: torch.cat([x[:1] * 2, x[1:]])),
    "stacked and split": lambda: Lambda(
        lambda x: torch.stack(x.chunk(2, -1), 1).flatten(1, 2)[:, :STEPS].repeat(1, 1, 2)
    ),
    "transposed": lambda: Lambda(
        lambda x: (
            x.transpose(0, 1)
            .reshape(STEPS, -1)
            .tanh()
            .view(STEPS, x.shape[0], WIDTH)
            .transpose(0, 1)
        )
    ),
    "one long row": lambda: Lambda(lambda x: x.flatten().tanh().view_as(x)),
    "positions": lambda: Lambda(lambda x: x + torch.arange(STEPS)[:, None] / STEPS),
    "rows of ones": lambda: Lambda(lambda x: x + torch.ones(x.shape[0], 1, 1)),
    "padded": lambda: Lambda(lambda x: F.pad(x, (1, 1))[..., 1:-1]),
    "sorted": lambda: Lambda(lambda x: x.sort(-1).values),
    "gathered": lambda: Lambda(lambda x: x.gather(1, x.argsort(1))),
    "masked": lambda: Lambda(lambda x: x.masked_fill(x > 1, 0.0)),
    "lower": lambda: Lambda(lambda x: x.tril()),
    "mantissa and exponent": lambda: Lambda(lambda x: sum(torch.frexp(x))),
    "exponent": lambda: Lambda(lambda x: x / 2.0 ** torch.frexp(x).exponent),
    "product with itself": lambda: Lambda(lambda x: x + x @ x.transpose(1, 2) @ x / 64),
    "product over rows": lambda: Lambda(
        lambda x: x + (x.flatten(1).t() @ x.flatten(1) @ x.flatten(1).t()).t().view_as(x) / 512
    ),
}
LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mean": lambda x, labels: F.cross_entropy(x.mean(1), labels),
    "sum": lambda x, labels: F.cross_entropy(x.mean(1), labels, reduction="sum"),
    "none": lambda x, labels: F.cross_entropy(x.mean(1), labels, reduction="none").mean(),
    "ignored": lambda x, labels: F.cross_entropy(x.mean(1), labels, ignore_index=1),
    "smoothed": lambda x, labels: F.cross_entropy(x.mean(1), labels, label_smoothing=0.1),
    "steps": lambda x, labels: F.cross_entropy(
        x.transpose(1, 2), labels[:, None].expand(-1, STEPS)
    ),
    "mse": lambda x, labels: F.mse_loss(x, torch.zeros_like(x)),
    "l1": lambda x, labels: F.l1_loss(x.mean(1), F.one_hot(labels, WIDTH).float()),
    "smooth l1": lambda x, labels: F.smooth_l1_loss(x, torch.zeros_like(x)),
    "bce": lambda x, labels: F.binary_cross_entropy_with_logits(
        x.mean(1), F.one_hot(labels, WIDTH).float()
    ),
    "kl": lambda x, labels: F.kl_div(
        F.log_softmax(x.mean(1), -1), torch.full(x.shape[::2], 1 / WIDTH), reduction="batchmean"
    ),
    "squares": lambda x, labels: x.square().sum() / 512,
}


class Model(nn.Module):
    """Parts one after the other, over two IPUs, and a loss of embedded words."""

    def __init__(self, parts: list[str], loss: str, is_tied: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(20, WIDTH)
        self.parts = nn.ModuleList(PARTS[name]() for name in parts)
        self.head = nn.Linear(WIDTH, 20 if is_tied else WIDTH)
        if is_tied:
            self.head.weight = self.words.weight
        self.is_tied, self.loss = is_tied, LOSSES[loss]

    def forward(self, words: torch.Tensor, labels: torch.Tensor):
        with poptorch.Block("first", ipu_id=0):
            x = self.words(words)
            for part in self.parts[::2]:
                x = part(x)
        with poptorch.Block("second", ipu_id=1):
            for part in self.parts[1::2]:
                x = part(x)
            x = self.head(x)
            x = x[..., :WIDTH] if self.is_tied else x
            return x, poptorch.identity_loss(self.loss(x, labels), reduction="none")


def batch(num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(20, (num_rows, STEPS)), torch.randint(WIDTH, (num_rows,))


def trained(
    model: nn.Module, given: tuple[torch.Tensor, ...], setting: Setting, *extras: Callable
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor], str]:
    """Trains a copy; returns the results of a call, the weights, and the program."""
    model = copy.deepcopy(model)
    options = setting.options()
    for extra in extras:
        extra(options)
    training = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.05))
    results = list(training(*given))
    text = training._executable.program.text()
    training.destroy()
    return results, model.state_dict(), text


def assert_like_plain(
    monkeypatch: pytest.MonkeyPatch, model: nn.Module, setting: Setting, count: int
) -> None:
    """Compares joined training with plain PyTorch."""
    given = batch(ROWS * setting.num_micro_batches)
    with monkeypatch.context() as patch:
        join(patch, count)
        (_, losses), weights, text = trained(model, given, setting)
    assert f"{count} micro-batches at once" in text
    plain = copy.deepcopy(model)
    expected = plain_step(plain, torch.optim.SGD(plain.parameters(), lr=0.05), given, setting)
    torch.testing.assert_close(losses.reshape(-1), expected, rtol=1e-4, atol=1e-5)
    for name, before in model.state_dict().items():
        changed, expected_change = weights[name] - before, plain.state_dict()[name] - before
        atol = 1e-3 * float(expected_change.abs().max()) + 1e-6
        torch.testing.assert_close(
            changed, expected_change, rtol=1e-3, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("part", PARTS)
def test_part_of_a_model_when_joined_then_has_the_numbers_of_pytorch(monkeypatch, part) -> None:
    setting = Setting("sharded", accumulation=4, iterations=2)
    assert_like_plain(monkeypatch, Model([part, "linear"], "mean"), setting, 2)


@pytest.mark.parametrize("norm", ["layer norm", "wide layer norm", "group norm", "instance norm"])
@pytest.mark.parametrize("count", [2, 4])
def test_norm_when_pieces_lie_apart_in_rows_then_its_gradient_reads_its_own_means(
    monkeypatch, norm, count
) -> None:
    """After the LSTM, micro-batches are interleaved, so the norm's gradient runs one by one."""
    torch.manual_seed(3)
    model = Model(["product over rows", norm, "lstm"], "mean")
    assert_like_plain(monkeypatch, model, Setting("sharded", accumulation=4), count)


def test_gradient_when_a_hook_adds_a_number_then_each_micro_batch_has_it_once(monkeypatch) -> None:
    model = Pulled()
    given = torch.randn(4, ROWS, WIDTH)
    join(monkeypatch, 4)
    _, weights, text = trained(model, (given.flatten(0, 1),), Setting("sharded", accumulation=4))
    assert "4 micro-batches at once" in text
    # The sum of all products of a row is the gradient without the hook.
    expected = model.weight.detach() - 0.05 * (given.sum((0, 1)) / 4 + 0.5)
    torch.testing.assert_close(weights["weight"], expected)


@pytest.mark.parametrize("loss", LOSSES)
def test_loss_when_joined_then_is_that_of_each_micro_batch(monkeypatch, loss) -> None:
    setting = Setting("sharded", accumulation=4)
    assert_like_plain(monkeypatch, Model(["linear"], loss), setting, 4)


@settings(
    max_examples=25,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    parts=st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=4),
    loss=st.sampled_from(sorted(LOSSES)),
    is_tied=st.booleans(),
    strategy=st.sampled_from(["sharded", "pipelined"]),
    replicas=st.integers(1, 2),
    count=st.sampled_from([2, 4]),
)
def test_random_models_when_joined_then_have_the_numbers_of_pytorch(
    monkeypatch, parts, loss, is_tied, strategy, replicas, count
) -> None:
    setting = Setting(strategy, accumulation=4, replicas=replicas)
    torch.manual_seed(3)
    assert_like_plain(monkeypatch, Model(parts, loss, is_tied), setting, count)
